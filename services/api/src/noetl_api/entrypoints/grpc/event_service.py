"""Append, Read, Watch and ListHeads over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from noetl.event.v1 import event_pb2 as pb
from noetl.event.v1 import event_pb2_grpc as pb_grpc
from noetl_contracts.mapping import events as mapping
from noetl_contracts.mapping.page_tokens import head_place, head_token
from noetl_contracts.mapping.times import moment, timestamp
from noetl_core.ids import parse_id
from noetl_servicekit.callers import current_caller

from noetl_api.application.scopes import acting_scope
from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["EventService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_EventServiceServicer_to_server(EventServicer(use_cases), server)


class EventServicer(pb_grpc.EventServiceServicer):
    """Translates; the use cases decide."""

    def __init__(self, use_cases: UseCases) -> None:
        self._append_events = use_cases.append_events
        self._read_events = use_cases.read_events
        self._watch_events = use_cases.watch_events

    async def Append(  # noqa: N802 - named by the contract
        self, request: pb.AppendRequest, context: grpc.aio.ServicerContext[pb.AppendRequest, pb.AppendResponse]
    ) -> pb.AppendResponse:
        """Append one atomic request."""
        caller = current_caller()
        scope = acting_scope(caller, scope_of(request.scope))
        appended = await self._append_events(caller, mapping.append_request(request, scope))
        return mapping.append_response(appended, places_only=request.places_only)

    async def Read(  # noqa: N802 - named by the contract
        self, request: pb.ReadRequest, context: grpc.aio.ServicerContext[pb.ReadRequest, pb.ReadResponse]
    ) -> pb.ReadResponse:
        """One page of a version range."""
        read = await self._read_events.page(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            from_version=request.from_version,
            to_version=request.to_version,
            size=request.page_size,
        )
        return pb.ReadResponse(
            events=[mapping.stored_message(event) for event in read.page.events],
            next_version=read.next_version,
            head_version=read.page.head_version,
            terminal=read.page.terminal,
        )

    async def ReadAll(  # noqa: N802 - named by the contract
        self, request: pb.ReadAllRequest, context: grpc.aio.ServicerContext[pb.ReadAllRequest, pb.ReadAllResponse]
    ) -> AsyncIterator[pb.ReadAllResponse]:
        """Every page of a version range."""
        pages = self._read_events.all(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            from_version=request.from_version,
            to_version=request.to_version,
        )
        async for page in pages:
            yield pb.ReadAllResponse(events=[mapping.stored_message(event) for event in page.events])

    async def Watch(  # noqa: N802 - named by the contract
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[pb.WatchRequest, pb.WatchResponse]
    ) -> AsyncIterator[pb.WatchResponse]:
        """What is there, then what is committed."""
        pages = self._watch_events(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            from_version=request.from_version,
        )
        async for page, ended in pages:
            yield pb.WatchResponse(events=[mapping.stored_message(event) for event in page.events], terminal=ended)

    async def ListHeads(  # noqa: N802 - named by the contract
        self, request: pb.ListHeadsRequest, context: grpc.aio.ServicerContext[pb.ListHeadsRequest, pb.ListHeadsResponse]
    ) -> pb.ListHeadsResponse:
        """Heads that moved."""
        page = await self._read_events.heads(
            current_caller(),
            list(request.shards),
            moved_since=moment(request.moved_since) if request.HasField("moved_since") else None,
            after=head_place(request.page_token),
            open_only=request.open_only,
            size=request.page_size,
        )
        last = page.heads[-1] if page.heads and page.more else None
        return pb.ListHeadsResponse(
            heads=[mapping.head_message(head) for head in page.heads],
            next_page_token=head_token(last.updated_at, last.execution_id) if last else "",
            now=timestamp(page.now),
        )
