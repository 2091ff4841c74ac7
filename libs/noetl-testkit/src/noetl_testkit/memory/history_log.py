"""A log that can only be read, over histories that a test has written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from noetl_core.append import Appended, AppendRequest
from noetl_core.errors import NoetlError, NotFound
from noetl_core.events import is_terminal
from noetl_core.ports.event_log import EventPage, HeadPage, MovedHead, Scope
from noetl_core.sharding import shard_of

from noetl_testkit.histories import NOON, History


class HistoryLog:
    """The read side of port `EventLog`; a head moved when its last event was ingested, and `now` is long after."""

    def __init__(self, *histories: History, shard_count: int = 64) -> None:
        self.histories = {history.execution_id: history for history in histories}
        self.now: datetime = NOON + timedelta(hours=1)
        self.failure: NoetlError | None = None
        self.put_back: dict[int, int] = {}
        """Where somebody put a head back to, and left the events."""
        self.reads: list[tuple[int, int, int]] = []
        """What was read: execution, first and last version."""
        self.attempts = 0
        self.listings: list[datetime | None] = []
        """Since when moved heads were asked for."""
        self._shard_count = shard_count

    def add(self, history: History) -> History:
        """Let another history be seen."""
        self.histories[history.execution_id] = history
        return history

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """Nobody who only reads may come here."""
        raise AssertionError("this log can only be read")

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """Events of a version range."""
        self.attempts += 1
        self._check()
        if execution_id not in self.histories:
            raise NotFound("execution", execution_id, code="execution.not_found")
        stored = self.histories[execution_id].stored
        chosen = stored[from_version - 1 : to_version or len(stored)][:limit]
        self.reads.append((execution_id, from_version, from_version + len(chosen) - 1))
        return EventPage(
            events=tuple(chosen),
            head_version=self.put_back.get(execution_id, len(stored)),
            terminal=_has_ended(self.histories[execution_id]),
        )

    async def moved_heads(
        self,
        shards: Sequence[int],
        *,
        moved_since: datetime | None,
        after: tuple[datetime, int] | None,
        open_only: bool,
        limit: int,
    ) -> HeadPage:
        """Heads of the shards that moved at or after a time."""
        self._check()
        self.listings.append(moved_since)
        heads = sorted(
            (self._head(history) for history in self.histories.values() if history.stored),
            key=lambda head: (head.updated_at, head.execution_id),
        )
        found = [
            head
            for head in heads
            if head.shard in shards
            and (moved_since is None or head.updated_at >= moved_since)
            and (after is None or (head.updated_at, head.execution_id) > after)
            and not (open_only and head.terminal)
        ]
        return HeadPage(heads=tuple(found[:limit]), now=self.now, more=len(found) >= limit)

    def _head(self, history: History) -> MovedHead:
        envelope = history.stored[0].envelope()
        return MovedHead(
            execution_id=history.execution_id,
            tenant_id=envelope.tenant_id,
            organization_id=envelope.organization_id,
            shard=shard_of(history.execution_id, self._shard_count),
            version=len(history.stored),
            terminal=_has_ended(history),
            updated_at=history.stored[-1].ingest_time,
        )

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


def _has_ended(history: History) -> bool:
    return any(is_terminal(event.envelope().event_type) for event in history.stored)
