"""Payloads and lineage over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from noetl.payload.v1 import payload_pb2 as pb
from noetl.payload.v1 import payload_pb2_grpc as pb_grpc
from noetl_contracts.mapping import payloads as mapping
from noetl_contracts.mapping.events import fence_of
from noetl_core.ids import parse_id
from noetl_servicekit.callers import current_caller

from noetl_api.application.payloads import FoundPayload
from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["PayloadService"].full_name
MAX_MESSAGE_BYTES = 1024 * 1024


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_PayloadServiceServicer_to_server(PayloadServicer(use_cases), server)


class PayloadServicer(pb_grpc.PayloadServiceServicer):
    """Translates; the use cases decide."""

    def __init__(self, use_cases: UseCases) -> None:
        self._read_payloads = use_cases.read_payloads
        self._trace_result = use_cases.trace_result
        self._collect_payloads = use_cases.collect_payloads

    async def Stat(  # noqa: N802 - named by the contract
        self, request: pb.StatRequest, context: grpc.aio.ServicerContext[pb.StatRequest, pb.StatResponse]
    ) -> pb.StatResponse:
        """What is known of a payload."""
        found = await self._read_payloads.find(current_caller(), scope_of(request.scope), request.locator)
        return pb.StatResponse(payload=_message(found))

    async def Fetch(  # noqa: N802 - named by the contract
        self, request: pb.FetchRequest, context: grpc.aio.ServicerContext[pb.FetchRequest, pb.FetchResponse]
    ) -> AsyncIterator[pb.FetchResponse]:
        """A payload, then its bytes."""
        found = await self._read_payloads.find(current_caller(), scope_of(request.scope), request.locator)
        yield pb.FetchResponse(payload=_message(found))
        async for chunk in self._read_payloads.content(found):
            for start in range(0, len(chunk), MAX_MESSAGE_BYTES):
                yield pb.FetchResponse(data=chunk[start : start + MAX_MESSAGE_BYTES])

    async def Trace(  # noqa: N802 - named by the contract
        self, request: pb.TraceRequest, context: grpc.aio.ServicerContext[pb.TraceRequest, pb.TraceResponse]
    ) -> pb.TraceResponse:
        """Where a result came from."""
        trace = await self._trace_result(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            request.step,
            at_version=request.at_version,
        )
        return pb.TraceResponse(
            results=[mapping.traced_result_message(result) for result in trace.results], truncated=trace.truncated
        )

    async def Collect(  # noqa: N802 - named by the contract
        self, request: pb.CollectRequest, context: grpc.aio.ServicerContext[pb.CollectRequest, pb.CollectResponse]
    ) -> AsyncIterator[pb.CollectResponse]:
        """How far a collection is, and what it came to."""
        reports = self._collect_payloads(
            current_caller(),
            scope_of(request.scope),
            apply=request.apply,
            grace_seconds=request.grace_seconds,
            fence=fence_of(request.fence),
        )
        async for report in reports:
            yield mapping.collect_response(report)


def _message(found: FoundPayload) -> pb.Payload:
    return mapping.payload_message(found.ref, stored_at=found.stored_at, reference=found.reference)
