"""States at any point of a history, over gRPC."""

from __future__ import annotations

import grpc
from noetl.replay.v1 import replay_pb2 as pb
from noetl.replay.v1 import replay_pb2_grpc as pb_grpc
from noetl_contracts.mapping.times import moment, optional_timestamp
from noetl_core.errors import InvalidInput
from noetl_core.ids import parse_id
from noetl_core.replay.points import Point
from noetl_servicekit.callers import current_caller
from noetl_servicekit.code_version import code_version

from noetl_api.application.replay_state import ReplayPage, ReplayQuery
from noetl_api.application.resolve_payloads import ResolvedPayload
from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ReplayService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_ReplayServiceServicer_to_server(ReplayServicer(use_cases), server)


class ReplayServicer(pb_grpc.ReplayServiceServicer):
    """Translates; the core folds."""

    def __init__(self, use_cases: UseCases) -> None:
        self._replay_state = use_cases.replay_state

    async def GetState(  # noqa: N802 - named by the contract
        self, request: pb.GetStateRequest, context: grpc.aio.ServicerContext[pb.GetStateRequest, pb.GetStateResponse]
    ) -> pb.GetStateResponse:
        """A page of a state."""
        page = await self._replay_state(
            current_caller(),
            scope_of(request.scope),
            ReplayQuery(
                execution_id=parse_id(request.execution_id, what="execution_id"),
                point=_point(request),
                projection=request.projection,
                resolve_payloads=request.resolve_payloads,
                from_start=request.from_start,
                page_size=request.page_size,
                page_token=request.page_token,
            ),
        )
        return _response(page)


def _point(request: pb.GetStateRequest) -> Point:
    match request.WhichOneof("as_of"):
        case "as_of_event_id":
            return Point(event_id=parse_id(request.as_of_event_id, what="as_of_event_id"))
        case "as_of_position":
            if not request.as_of_position:  # who sets it means a version; the head is meant by setting none of them
                raise InvalidInput("positions count from 1")
            return Point(stream_version=request.as_of_position)
        case "as_of_time":
            return Point(time=moment(request.as_of_time))
        case _:
            return Point()


def _response(page: ReplayPage) -> pb.GetStateResponse:
    known, replayed = page.known, page.known.replayed
    state = replayed.state
    return pb.GetStateResponse(
        execution_id=str(state.execution.execution_id),
        tenant_id=state.execution.tenant_id,
        organization_id=state.execution.organization_id,
        stream_version=state.stream_version,
        event_id=str(state.last_event_id),
        reached_at=optional_timestamp(replayed.reached_at),
        event_checksum=replayed.checksum,
        head_version=page.head_version,
        format=page.format,
        upcasters=replayed.upcasters,
        snapshot_version=known.snapshot_version,
        surfaces=known.checksums,
        row_counts={str(surface): len(keys) for surface, keys in known.order.items()},
        checksum=known.checksum,
        payload_root=known.payload_root,
        payload_count=known.payload_count,
        rows=[pb.ReplayedRow(surface=str(one.surface), key=one.key, row=one.row) for one in page.rows],
        payloads=[_payload(one) for one in page.payloads],
        next_page_token=page.next_page_token,
        code_version=code_version(),
    )


def _payload(one: ResolvedPayload) -> pb.ResolvedPayload:
    return pb.ResolvedPayload(
        sha256=one.use.sha256,
        uri=one.use.uri,
        media_type=one.use.media_type,
        uses=one.use.uses,
        status=one.status,
        stored_bytes=one.stored_bytes,
    )
