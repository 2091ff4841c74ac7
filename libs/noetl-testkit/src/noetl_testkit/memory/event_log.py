"""The in-memory twin of the canonical log: the same verdicts, from the same pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from noetl_core.append import (
    Ahead,
    Appended,
    AppendRequest,
    Head,
    Hint,
    KnownKey,
    LogView,
    Numbered,
    PlacedEvent,
    PreparedRequest,
    prepare,
)
from noetl_core.envelope import EXECUTION_AGGREGATE, StoredEvent
from noetl_core.errors import AlreadyExists, NoetlError, NotFound
from noetl_core.ids import Snowflake
from noetl_core.numbering import number
from noetl_core.ports.event_log import EventPage, HeadPage, MovedHead, Scope
from noetl_core.ports.streams import HiddenPage, HiddenStream, StreamHead, StreamPage

from noetl_testkit.memory.leases import InMemoryShardLeases

UNIQUE_BY = {
    "command.issued": "command_id",
    "loop.done": "loop_id",
    "loop.fanin.completed": "epoch_id",
    "checkpoint.committed": "epoch_id",
}
"""The named unique indexes of the database: a backstop below idempotency keys."""

Outcome = tuple[Appended, ...] | NoetlError


@dataclass(slots=True)
class _Stream:
    head: Head
    updated_at: datetime
    events: list[StoredEvent]


class InMemoryEventLog:
    """Port `EventLog`, and the batch log below group commit; `hints`, `streams` and `log_branch` are open to tests."""

    def __init__(
        self,
        *,
        leases: InMemoryShardLeases | None = None,
        shard_count: int = 64,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.streams: dict[int, _Stream] = {}
        self.log_branch = "1"
        self.hints: list[Hint] = []
        self.on_commit: list[Callable[[Sequence[PlacedEvent]], None]] = []
        self._leases = leases or InMemoryShardLeases(shard_count=shard_count, clock=clock)
        self._shard_count = shard_count
        self._clock = clock
        self._ids = Snowflake(0)
        self._keys: dict[tuple[int, str], KnownKey] = {}
        self._aggregates: dict[tuple[int, str], int] = {}
        self._started: dict[tuple[str, str, str], KnownKey] = {}
        self._unique: set[tuple[int, str, str]] = set()

    def next_id(self) -> int:
        """A new id of an event or execution."""
        return self._ids.next(int(self._clock().timestamp() * 1000))

    def prepare(self, request: AppendRequest) -> PreparedRequest:
        """What group commit does before it queues a request."""
        return prepare(request, next_event_id=self.next_id, now=self._clock(), shard_count=self._shard_count)

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """Append all of the request or nothing."""
        outcome = self._commit_one(self.prepare(request))
        if isinstance(outcome, NoetlError):
            raise outcome
        return outcome

    async def commit(
        self, requests: Sequence[PreparedRequest], *, ahead: Ahead | None = None, at: datetime | None = None
    ) -> list[Outcome]:
        """Commit what passes its guards, at the time that was foreseen for it if one is given."""
        at = at or self._clock()
        if ahead is not None and (foreseen := self.foreseen(requests[0], at=at)) is not None:
            ahead(foreseen)
        return [self._commit_one(request, at=at) for request in requests]

    def foreseen(self, request: PreparedRequest, *, at: datetime) -> tuple[Appended, ...] | None:
        """What would become of it at this moment; None if not all of it would be new and accepted."""
        numbered = number([request], self._view(request, at=at))
        outcome = numbered.outcomes[0]
        if isinstance(outcome, NoetlError) or any(one.duplicate for one in outcome):
            return None
        return None if any(one in self._unique for one in _unique_facts(numbered.events)) else outcome

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
        stream = self.streams.get(execution_id)
        if stream is None or not _belongs_to(stream.head, scope):
            raise NotFound("execution", execution_id, code="execution.not_found")
        last = min(to_version or stream.head.version, stream.head.version)
        chosen = stream.events[max(from_version, 1) - 1 : last][:limit]
        return EventPage(events=tuple(chosen), head_version=stream.head.version, terminal=stream.head.terminal)

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
        found = [
            MovedHead(
                execution_id=stream.head.execution_id,
                tenant_id=stream.head.tenant_id,
                organization_id=stream.head.organization_id,
                shard=stream.head.shard,
                version=stream.head.version,
                terminal=stream.head.terminal,
                updated_at=stream.updated_at,
            )
            for stream in self.streams.values()
            if stream.head.shard in shards
            and (moved_since is None or stream.updated_at >= moved_since)
            and (after is None or (stream.updated_at, stream.head.execution_id) > after)
            and not (open_only and stream.head.terminal)
        ]
        found.sort(key=lambda head: (head.updated_at, head.execution_id))
        return HeadPage(heads=tuple(found[:limit]), now=self._clock(), more=len(found) >= limit)

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        """Port `Streams`: heads with ids above one, of those that moved at or after a time."""
        found = [
            stream
            for execution_id, stream in sorted(self.streams.items())
            if execution_id > after
            and (moved_since is None or stream.updated_at >= moved_since)
            and _belongs_to(stream.head, scope)
        ]
        heads = tuple(_stream_head(stream) for stream in found[:limit])
        return StreamPage(
            heads=heads, now=self._clock(), more=len(heads) == limit, log_branch=self.log_branch, scope=scope
        )

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        """One head, None if there is none for this scope."""
        stream = self.streams.get(execution_id)
        return _stream_head(stream) if stream is not None and _belongs_to(stream.head, scope) else None

    async def list_hidden(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> HiddenPage:
        """Port `HiddenStreams`; here every stream has a head, which a test may have given to another tenant."""
        found = [one for one in sorted(self.streams.items()) if one[0] > after][:limit]
        hidden: list[HiddenStream] = []
        for execution_id, stream in found:
            first = stream.events[0].envelope()
            whose = Scope(tenant_id=first.tenant_id, organization_id=first.organization_id)
            if scope in (None, whose) and not _belongs_to(stream.head, whose):
                hidden.append(
                    HiddenStream(
                        execution_id=execution_id,
                        tenant_id=whose.tenant_id,
                        organization_id=whose.organization_id,
                        has_head=True,
                    )
                )
        return HiddenPage(hidden=tuple(hidden), following=found[-1][0] if len(found) == limit else None)

    async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
        """Port `Descendants`: those that have not ended, the nearest first."""
        found: list[int] = []
        level = [execution_id]
        while level:
            heads = [stream.head for stream in self.streams.values() if stream.head.parent_execution_id in level]
            found += sorted(head.execution_id for head in heads if not head.terminal)
            level = [head.execution_id for head in heads]
        return tuple(found[:limit])

    async def has_children(self, execution_id: int) -> bool:
        """Whether anything was ever started under it."""
        return any(stream.head.parent_execution_id == execution_id for stream in self.streams.values())

    def _commit_one(self, request: PreparedRequest, *, at: datetime | None = None) -> Outcome:
        numbered = number([request], self._view(request, at=at))
        if refused := next((one for one in _unique_facts(numbered.events) if one in self._unique), None):
            return AlreadyExists(f"the log already has such an event ({refused[1]} {refused[2]})")
        if numbered.events:
            self._write(numbered)
        return numbered.outcomes[0]

    def _view(self, request: PreparedRequest, *, at: datetime | None) -> LogView:
        return LogView(
            now=at or self._clock(),
            heads={execution_id: stream.head for execution_id, stream in self.streams.items()},
            keys=self._keys,
            aggregate_versions=self._aggregates,
            epochs={
                (fence.role, fence.shard): self._leases.epoch(fence.role, fence.shard)
                for fence in request.request.fences
            },
            started=self._started,
        )

    def _write(self, numbered: Numbered) -> None:
        now = self._clock()
        for head, _ in numbered.created:
            self.streams[head.execution_id] = _Stream(head=head, updated_at=now, events=[])
        for head in numbered.heads:
            stream = self.streams[head.execution_id]
            stream.head, stream.updated_at = head, now
        for placed in numbered.events:
            execution_id, draft = placed.head.execution_id, placed.prepared.draft
            self.streams[execution_id].events.append(placed.stored)
            known = KnownKey(placed.prepared.content_sha256, placed.prepared.event_id, placed.stored)
            self._keys[(execution_id, draft.idempotency_key)] = known
            if draft.aggregate_type != EXECUTION_AGGREGATE:
                self._aggregates[(execution_id, placed.aggregate_id)] = placed.stored.aggregate_version
        for head, start in numbered.created:
            if start.start_key:
                first = self.streams[head.execution_id].events[0]
                envelope = first.envelope()
                self._started[(head.tenant_id, head.organization_id, start.start_key)] = KnownKey(
                    envelope.content_sha256, envelope.event_id, first
                )
        self._unique.update(_unique_facts(numbered.events))
        self.hints.extend(numbered.hints)
        for tell in self.on_commit:
            tell(numbered.events)


def _belongs_to(head: Head, scope: Scope | None) -> bool:
    return scope is None or (head.tenant_id, head.organization_id) == (scope.tenant_id, scope.organization_id)


def _stream_head(stream: _Stream) -> StreamHead:
    head = stream.head
    return StreamHead(
        execution_id=head.execution_id,
        tenant_id=head.tenant_id,
        organization_id=head.organization_id,
        version=head.version,
        checksum=head.checksum,
        terminal=head.terminal,
        updated_at=stream.updated_at,
    )


def _unique_facts(events: Sequence[PlacedEvent]) -> Iterator[tuple[int, str, str]]:
    for placed in events:
        draft = placed.prepared.draft
        field = UNIQUE_BY.get(draft.event_type)
        if field is None:
            continue
        value = draft.command_id if field == "command_id" else draft.meta.get(field)
        if isinstance(value, str) and value:
            yield placed.head.execution_id, draft.event_type, value
