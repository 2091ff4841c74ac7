"""What executions wait for, over gRPC."""

from __future__ import annotations

import grpc
from noetl.why.v1 import why_pb2 as pb
from noetl.why.v1 import why_pb2_grpc as pb_grpc
from noetl_contracts.mapping import why as mapping
from noetl_contracts.mapping.times import timestamp
from noetl_core.ids import parse_id
from noetl_servicekit.callers import current_caller

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["WhyService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_WhyServiceServicer_to_server(WhyServicer(use_cases), server)


class WhyServicer(pb_grpc.WhyServiceServicer):
    """Translates; the core explains."""

    def __init__(self, use_cases: UseCases) -> None:
        self._explain_execution = use_cases.explain_execution

    async def Explain(  # noqa: N802 - named by the contract
        self, request: pb.ExplainRequest, context: grpc.aio.ServicerContext[pb.ExplainRequest, pb.ExplainResponse]
    ) -> pb.ExplainResponse:
        """What an execution waits for."""
        explanation = await self._explain_execution(
            current_caller(), scope_of(request.scope), parse_id(request.execution_id, what="execution_id")
        )
        return pb.ExplainResponse(
            execution_id=str(explanation.execution_id),
            status=explanation.status,
            stream_version=explanation.stream_version,
            as_of=timestamp(explanation.as_of),
            reasons=[mapping.reason_message(reason) for reason in explanation.reasons],
        )
