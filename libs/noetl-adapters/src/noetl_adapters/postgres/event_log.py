"""The canonical log in PostgreSQL: a batch of requests is one transaction, and who wins is decided at the heads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg
from noetl_core.append import Ahead, Appended, Head, KnownKey, LogView, Numbered, PreparedRequest
from noetl_core.envelope import StoredEvent
from noetl_core.errors import AlreadyExists, InvalidInput, NoetlError, NotFound, Overtaken
from noetl_core.numbering import number
from noetl_core.ports.event_log import EventPage, HeadPage, MovedHead, Scope

from noetl_adapters.postgres.asked import Asked, as_columns
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.copied_append import CopiedAppend
from noetl_adapters.postgres.copy_rows import EVENT_COLUMNS, event_rows_binary
from noetl_adapters.postgres.event_rows import (
    commit_notices,
    created_columns,
    event_columns,
    moved_columns,
    outbox_columns,
)
from noetl_adapters.postgres.optimistic_append import OptimisticAppend
from noetl_adapters.postgres.pool import REFUSED_ROWS, translated
from noetl_adapters.postgres.queries import load_queries
from noetl_adapters.postgres.remembered_streams import RememberedStreams

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Of events in one page: well below what a message may have."""

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

COPY_FROM_ROWS = 32
"""COPY costs more than INSERT to begin with, and half as much per row."""

Outcome = tuple[Appended, ...] | NoetlError


class PostgresEventLog:
    """Commits batches of prepared requests and reads events back."""

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        optimistic: OptimisticAppend | None = None,
        copied: CopiedAppend | None = None,
        remembered: RememberedStreams | None = None,
    ) -> None:
        self._pool = pool
        self._sql = load_queries("event_log.sql")
        self._optimistic = optimistic or OptimisticAppend()
        self._copied = copied or CopiedAppend()
        self._remembered = remembered or RememberedStreams()

    async def commit(self, requests: Sequence[PreparedRequest], *, ahead: Ahead | None = None) -> list[Outcome]:
        """Commit what passes its guards; a request that does not is answered, and harms no other.

        `ahead` is told of a request by itself that memory is sure of. It is written as told, or `Overtaken` for good.
        """
        if ahead is not None and (outcomes := await self._commit_as_told(requests, ahead)) is not None:
            return outcomes
        try:
            async with translated():
                if (outcomes := await self._commit_unless_overtaken(requests)) is not None:
                    return outcomes
                return await self._commit_together(requests)
        except REFUSED_ROWS:
            # An index or a CHECK refused a row, or a start key was taken between our read and our insert: the batch
            # was rolled back, and its requests run alone, so that only the one concerned pays for it.
            return [await self._commit_alone(request) for request in requests]

    async def _commit_as_told(self, requests: Sequence[PreparedRequest], ahead: Ahead) -> list[Outcome] | None:
        """None if memory does not show enough, and nothing was told."""
        async with translated(), self._pool.acquire() as connection:
            foreseen = self._foreseen(requests)
            if foreseen is None:
                return None
            view, numbered, (outcome,) = foreseen
            ahead(outcome)
            await asyncio.sleep(0)  # it is on its way before the statement is spelt
            try:
                async with translated():
                    is_written = await self._optimistic.write(connection, view, numbered)
                if is_written:
                    self._remembered.learn(view, numbered)
                    return [outcome]
            except REFUSED_ROWS:
                # An index knows better: its id, or its start key, is somebody else's. That key is looked at next time.
                self._remembered.learn_start_keys(numbered)
            self._remembered.forget(view)
        return [Overtaken("what was told of this append was not committed")]

    async def _commit_alone(self, request: PreparedRequest) -> Outcome:
        """A second look settles a lost race for a start key; a refusal that stays is the caller's."""
        for last_look in (False, True):
            try:
                async with translated():
                    return (await self._commit_together([request]))[0]
            except REFUSED_ROWS as exc:
                if last_look:
                    return _refusal(exc)
        raise AssertionError("unreachable")

    async def _commit_unless_overtaken(self, requests: Sequence[PreparedRequest]) -> list[Outcome] | None:
        """In one round trip or two; None if somebody else moved a head between them, or is likely to."""
        drafts = sum(len(stream.drafts) for prepared in requests for stream in prepared.streams)
        is_large = drafts >= COPY_FROM_ROWS
        if is_large and self._copied.is_contested():
            return None
        async with self._pool.acquire() as connection:
            foreseen = self._foreseen(requests)
            if foreseen is not None and await self._is_as_foreseen(connection, *foreseen[:2]):
                return list(foreseen[2])
            view = await self._optimistic.look(connection, requests)
            if view is None:
                return None
            if foreseen is not None:
                self._remembered.forget(foreseen[0], view)
            numbered = number(requests, view)
            if numbered.events:
                if not await self._write_if_unmoved(connection, view, numbered):
                    if is_large:
                        self._copied.overtaken()
                    return None
                self._remembered.learn(view, numbered)
        return list(numbered.outcomes)

    async def _is_as_foreseen(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        """Written without a look; False if memory was wrong, and nothing was written."""
        try:
            is_written = await self._write_if_unmoved(connection, view, numbered)
        except REFUSED_ROWS:
            # One row of perhaps a thousand requests: a look finds out whether it is a start key that is taken, and
            # next time that key is looked at first.
            self._remembered.learn_start_keys(numbered)
            return False
        if is_written:
            self._remembered.learn(view, numbered)
        return is_written

    async def _write_if_unmoved(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        writer = self._copied if len(numbered.events) >= COPY_FROM_ROWS else self._optimistic
        return await writer.write(connection, view, numbered)

    def _foreseen(
        self, requests: Sequence[PreparedRequest]
    ) -> tuple[LogView, Numbered, Sequence[tuple[Appended, ...]]] | None:
        """What memory says that becomes of them. It may be out of date, so it can accept but never refuse."""
        view = self._remembered.view(requests, self._optimistic.clock.now())
        if view is None:
            return None
        numbered = number(requests, view)
        accepted: list[tuple[Appended, ...]] = []
        for outcome in numbered.outcomes:
            if isinstance(outcome, NoetlError) or any(one.duplicate for one in outcome):
                return None
            accepted.append(outcome)
        return view, numbered, accepted

    async def _commit_together(self, requests: Sequence[PreparedRequest]) -> list[Outcome]:
        async with self._pool.acquire() as connection, connection.transaction():
            view = await self._view(connection, requests)
            numbered = number(requests, view)
            if numbered.events:
                await self._write(connection, numbered)
        self._remembered.learn(view, numbered)
        return list(numbered.outcomes)

    async def _view(self, connection: asyncpg.Connection, requests: Sequence[PreparedRequest]) -> LogView:
        """Everything the verdict depends on, read after the heads are locked."""
        asked = Asked(requests)
        heads: dict[int, Head] = {}
        if asked.heads:
            rows = await connection.fetch(self._sql["lock_heads"], sorted(asked.heads))
            heads = {row[0]: Head(*row) for row in rows}
        epochs: dict[tuple[str, int], int] = {}
        if asked.fences:
            rows = await connection.fetch(self._sql["lock_epochs"], *as_columns(sorted(asked.fences), 2))
            epochs = {(row[0], row[1]): row[2] for row in rows}
        aggregates = await self._aggregate_versions(connection, [a for a in asked.aggregates if a[0] in heads])
        started = await self._started(connection, asked.starts)
        rows = await connection.fetch(self._sql["known_keys"], *asked.key_columns(heads))
        return LogView(
            now=next(row["ingest_time"] for row in rows if row[0] is None),
            heads=heads,
            keys={(row[0], row[1]): KnownKey(row[2], row[3], _stored(row, 4)) for row in rows if row[0] is not None},
            aggregate_versions=aggregates,
            epochs=epochs,
            started=started,
        )

    async def _aggregate_versions(
        self, connection: asyncpg.Connection, asked: Sequence[tuple[int, str]]
    ) -> dict[tuple[int, str], int]:
        if not asked:
            return {}
        rows = await connection.fetch(self._sql["aggregate_versions"], *as_columns(asked, 2))
        return {(row[0], row[1]): row[2] for row in rows}

    async def _started(
        self, connection: asyncpg.Connection, asked: Sequence[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], KnownKey]:
        rows = await connection.fetch(self._sql["started"], *as_columns(asked, 3)) if asked else []
        if not rows:
            return {}
        first = await connection.fetch(self._sql["first_events"], [row["execution_id"] for row in rows])
        known = {row[0]: KnownKey(row[1], row[2], _stored(row, 3)) for row in first}
        return {(row[0], row[1], row[2]): known[row["execution_id"]] for row in rows}

    async def _write(self, connection: asyncpg.Connection, numbered: Numbered) -> None:
        if len(numbered.events) < COPY_FROM_ROWS:
            await connection.execute(self._sql["insert_events"], *event_columns(numbered))
        else:
            rows = event_rows_binary(numbered.events)
            await connection.copy_to_table(
                "event", schema_name="noetl", columns=EVENT_COLUMNS, format="binary", source=rows
            )
        if numbered.created:
            await connection.execute(self._sql["insert_heads"], *created_columns(numbered))
        await connection.execute(
            self._sql["finish"],
            *moved_columns(numbered.heads),
            *outbox_columns(numbered),
            commit_notices(numbered),
        )

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """Events of a version range, and where the head stood when they were read."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["read"], execution_id, from_version, to_version, max(limit, 0))
        head = rows[0] if rows else None
        if head is None or (scope is not None and (head[0], head[1]) != (scope.tenant_id, scope.organization_id)):
            raise NotFound("execution", execution_id, code="execution.not_found")
        found = rows if head["stream_version"] is not None else []
        return EventPage(events=_cut_by_bytes(found), head_version=head[2], terminal=head[3])

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
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(
                self._sql["open_heads" if open_only else "moved_heads"],
                list(shards),
                moved_since or _LONG_AGO,
                *(after or (_LONG_AGO, 0)),
                limit,
            )
            now = rows[0]["now"] if rows else await connection.fetchval(self._sql["clock"])
        return HeadPage(
            heads=tuple(MovedHead(**{k: v for k, v in row.items() if k != "now"}) for row in rows),
            now=now,
            more=len(rows) == limit,
        )


def _cut_by_bytes(rows: Sequence[asyncpg.Record]) -> tuple[StoredEvent, ...]:
    """As many of the events as fit into one message, and always the first: a page is short, never impossible."""
    events: list[StoredEvent] = []
    left = MAX_PAGE_BYTES
    for row in rows:
        event = _stored(row, 4)
        left -= len(event.body)
        if events and left < 0:
            break
        events.append(event)
    return tuple(events)


def _is_new(outcome: Outcome) -> bool:
    return not isinstance(outcome, NoetlError) and not any(one.duplicate for one in outcome)


def _refusal(exc: Exception) -> NoetlError:
    if isinstance(exc, NoetlError):
        return exc
    name = getattr(exc, "constraint_name", None) or "no constraint named"
    if isinstance(exc, asyncpg.UniqueViolationError):
        return AlreadyExists(f"the log already has such an event ({name})", constraint=name)
    return InvalidInput(f"the log refuses the event ({name}): {exc}", constraint=name)


def _stored(row: asyncpg.Record, first: int) -> StoredEvent:
    return StoredEvent(
        stream_version=row[first],
        aggregate_version=row[first + 1],
        ingest_time=row[first + 2],
        prev_checksum=row[first + 3],
        checksum=row[first + 4],
        body=row[first + 5],
    )
