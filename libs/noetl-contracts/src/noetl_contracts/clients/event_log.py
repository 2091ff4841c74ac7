"""The canonical log over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import grpc
from noetl.event.v1 import event_pb2 as pb
from noetl.event.v1 import event_pb2_grpc as pb_grpc
from noetl_core.append import Appended, AppendRequest
from noetl_core.envelope import StoredEvent
from noetl_core.ports.event_log import EventPage, HeadPage, Scope

from noetl_contracts.channel import NO_DEADLINE
from noetl_contracts.mapping import events as mapping
from noetl_contracts.mapping.page_tokens import head_place, head_token
from noetl_contracts.mapping.times import moment, optional_timestamp
from noetl_contracts.status import raising_noetl_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEvents:
    """What a watch saw at once; `terminal` comes with the last batch."""

    events: tuple[StoredEvent, ...]
    terminal: bool


class EventLogClient:
    """Port `EventLog`, served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.EventServiceAsyncStub = pb_grpc.EventServiceStub(channel)
        self._timeout = timeout

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """Append all of the request or nothing."""
        with raising_noetl_errors():
            response = await self._stub.Append(mapping.append_message(request), timeout=self._timeout)
        return tuple(mapping.appended(one) for one in response.events)

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """One page of events."""
        request = pb.ReadRequest(
            scope=mapping.scope_message(scope),
            execution_id=str(execution_id),
            from_version=from_version,
            to_version=to_version,
            page_size=limit,
        )
        with raising_noetl_errors():
            response = await self._stub.Read(request, timeout=self._timeout)
        return EventPage(
            events=tuple(mapping.stored(one) for one in response.events),
            head_version=response.head_version,
            terminal=response.terminal,
        )

    async def read_all(
        self, scope: Scope | None, execution_id: int, *, from_version: int = 1, to_version: int = 0
    ) -> AsyncIterator[StoredEvent]:
        """Every event of a range, streamed."""
        request = pb.ReadAllRequest(
            scope=mapping.scope_message(scope),
            execution_id=str(execution_id),
            from_version=from_version,
            to_version=to_version,
        )
        with raising_noetl_errors():
            async for page in self._stub.ReadAll(request, timeout=NO_DEADLINE):
                for one in page.events:
                    yield mapping.stored(one)

    async def watch(
        self, scope: Scope | None, execution_id: int, *, from_version: int = 1, timeout: float = NO_DEADLINE
    ) -> AsyncIterator[WatchedEvents]:
        """What is there, then what is committed, until the terminal event."""
        request = pb.WatchRequest(
            scope=mapping.scope_message(scope), execution_id=str(execution_id), from_version=from_version
        )
        with raising_noetl_errors():
            async for batch in self._stub.Watch(request, timeout=timeout):
                yield WatchedEvents(events=tuple(mapping.stored(one) for one in batch.events), terminal=batch.terminal)

    async def moved_heads(
        self,
        shards: Sequence[int],
        *,
        moved_since: datetime | None,
        after: tuple[datetime, int] | None,
        open_only: bool,
        limit: int,
    ) -> HeadPage:
        """One page of heads that moved."""
        request = pb.ListHeadsRequest(
            shards=shards,
            moved_since=optional_timestamp(moved_since),
            open_only=open_only,
            page_size=limit,
            page_token=head_token(*after) if after else "",
        )
        with raising_noetl_errors():
            response = await self._stub.ListHeads(request, timeout=self._timeout)
        return HeadPage(
            heads=tuple(mapping.head(one) for one in response.heads),
            now=moment(response.now),
            more=head_place(response.next_page_token) is not None,
        )
