"""What proofs and exports read, over gRPC."""

from __future__ import annotations

import grpc
from noetl.evidence.v1 import evidence_pb2 as pb
from noetl.evidence.v1 import evidence_pb2_grpc as pb_grpc
from noetl_contracts.mapping import evidence as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.mapping.times import moment, timestamp
from noetl_core.ids import parse_id
from noetl_servicekit.callers import current_caller

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["EvidenceService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_EvidenceServiceServicer_to_server(EvidenceServicer(use_cases), server)


class EvidenceServicer(pb_grpc.EvidenceServiceServicer):
    """Translates; the use cases decide who sees what."""

    def __init__(self, use_cases: UseCases) -> None:
        self._list_streams = use_cases.list_streams
        self._list_rows = use_cases.list_rows
        self._list_live = use_cases.list_live
        self._check_columns = use_cases.check_columns

    async def ListStreams(  # noqa: N802 - named by the contract
        self,
        request: pb.ListStreamsRequest,
        context: grpc.aio.ServicerContext[pb.ListStreamsRequest, pb.ListStreamsResponse],
    ) -> pb.ListStreamsResponse:
        """Heads by execution id."""
        after = request.after_execution_id
        page = await self._list_streams.page(
            current_caller(),
            scope_of(request.scope),
            after=parse_id(after, what="after_execution_id") if after else 0,
            moved_since=moment(request.moved_since) if request.HasField("moved_since") else None,
            size=request.page_size,
        )
        return pb.ListStreamsResponse(
            heads=[mapping.head_message(head) for head in page.heads],
            more=page.more,
            now=timestamp(page.now),
            log_branch=page.log_branch,
            scope=scope_message(page.scope),
        )

    async def ListHidden(  # noqa: N802 - named by the contract
        self,
        request: pb.ListHiddenRequest,
        context: grpc.aio.ServicerContext[pb.ListHiddenRequest, pb.ListHiddenResponse],
    ) -> pb.ListHiddenResponse:
        """Executions that have events and are not listed."""
        after = request.after_execution_id
        page = await self._list_streams.hidden(
            current_caller(),
            scope_of(request.scope),
            after=parse_id(after, what="after_execution_id") if after else 0,
            size=request.page_size,
        )
        return mapping.hidden_message(page)

    async def ListLive(  # noqa: N802 - named by the contract
        self, request: pb.ListLiveRequest, context: grpc.aio.ServicerContext[pb.ListLiveRequest, pb.ListLiveResponse]
    ) -> pb.ListLiveResponse:
        """Executions that projectors have a row of."""
        after = request.after_execution_id
        page = await self._list_live(
            current_caller(),
            scope_of(request.scope),
            after=parse_id(after, what="after_execution_id") if after else 0,
            size=request.page_size,
        )
        return pb.ListLiveResponse(page=mapping.live_message(page))

    async def GetStream(  # noqa: N802 - named by the contract
        self,
        request: pb.GetStreamRequest,
        context: grpc.aio.ServicerContext[pb.GetStreamRequest, pb.GetStreamResponse],
    ) -> pb.GetStreamResponse:
        """Where one stream ends."""
        head = await self._list_streams.one(
            current_caller(), scope_of(request.scope), parse_id(request.execution_id, what="execution_id")
        )
        return pb.GetStreamResponse(head=mapping.head_message(head))

    async def ListRows(  # noqa: N802 - named by the contract
        self, request: pb.ListRowsRequest, context: grpc.aio.ServicerContext[pb.ListRowsRequest, pb.ListRowsResponse]
    ) -> pb.ListRowsResponse:
        """Rows as they are stored."""
        page = await self._list_rows(
            current_caller(),
            scope_of(request.scope),
            mapping.wanted(request.wanted),
            token=request.page_token,
            wait_seconds=request.wait_seconds,
        )
        return pb.ListRowsResponse(page=mapping.row_page_message(page))

    async def CheckColumns(  # noqa: N802 - named by the contract
        self,
        request: pb.CheckColumnsRequest,
        context: grpc.aio.ServicerContext[pb.CheckColumnsRequest, pb.CheckColumnsResponse],
    ) -> pb.CheckColumnsResponse:
        """What differs between columns and bytes."""
        page = await self._check_columns(
            current_caller(),
            scope_of(request.scope),
            [parse_id(one, what="execution_id") for one in request.execution_ids],
            after=mapping.event_place(request.page_token),
        )
        return mapping.column_page_message(page)
