"""The canonical log in PostgreSQL: a batch of requests is one transaction, and who wins is decided under head locks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg
from noetl_core.append import Appended, Head, KnownKey, LogView, Numbered, PreparedRequest
from noetl_core.envelope import EXECUTION_AGGREGATE, StoredEvent
from noetl_core.errors import AlreadyExists, InvalidInput, NoetlError, NotFound
from noetl_core.numbering import number
from noetl_core.ports.event_log import EventPage, HeadPage, MovedHead, Scope

from noetl_adapters.postgres.event_rows import (
    commit_notice,
    created_columns,
    event_columns,
    moved_columns,
    outbox_columns,
)
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

Outcome = tuple[Appended, ...] | NoetlError


class PostgresEventLog:
    """Commits batches of prepared requests and reads events back."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("event_log.sql")

    async def commit(self, requests: Sequence[PreparedRequest]) -> list[Outcome]:
        """Commit what passes its guards; a request that does not is answered, and harms no other."""
        try:
            async with translated():
                return await self._commit_together(requests)
        except asyncpg.IntegrityConstraintViolationError:
            # An index or a CHECK refused a row, or a start key was taken between our read and our insert: the batch
            # was rolled back, and its requests run alone, so that only the one concerned pays for it.
            return [await self._commit_alone(request) for request in requests]

    async def _commit_alone(self, request: PreparedRequest) -> Outcome:
        """A second look settles a lost race for a start key; a refusal that stays is the caller's."""
        for last_look in (False, True):
            try:
                async with translated():
                    return (await self._commit_together([request]))[0]
            except asyncpg.IntegrityConstraintViolationError as exc:
                if last_look:
                    return _refused_by_index(exc)
        raise AssertionError("unreachable")

    async def _commit_together(self, requests: Sequence[PreparedRequest]) -> list[Outcome]:
        async with self._pool.acquire() as connection, connection.transaction():
            view = await self._view(connection, requests)
            numbered = number(requests, view)
            if numbered.events:
                await self._write(connection, numbered)
        return list(numbered.outcomes)

    async def _view(self, connection: asyncpg.Connection, requests: Sequence[PreparedRequest]) -> LogView:
        """Everything the verdict depends on, read after the heads are locked."""
        streams = [stream for request in requests for stream in request.streams]
        ids = sorted({stream.append.execution_id for stream in streams if stream.append.start is None})
        heads = (
            {row[0]: Head(*row) for row in await connection.fetch(self._sql["lock_heads"], ids)}
            if ids
            else {}
        )
        fences = sorted({(f.role, f.shard) for r in requests if (f := r.request.fence) is not None})
        epochs = {}
        if fences:
            rows = await connection.fetch(
                self._sql["lock_epochs"], [role for role, _ in fences], [shard for _, shard in fences]
            )
            epochs = {(row[0], row[1]): row[2] for row in rows}
        keys: dict[tuple[int, str], KnownKey] = {}
        asked = [
            (stream.append.execution_id, draft.draft.idempotency_key)
            for stream in streams
            if stream.append.execution_id in heads
            for draft in stream.drafts
        ]
        if asked:
            rows = await connection.fetch(
                self._sql["known_keys"], [a for a, _ in asked], [k for _, k in asked]
            )
            keys = {(row[0], row[1]): KnownKey(row[2], row[3], _stored(row, 4)) for row in rows}
        aggregates = await self._aggregate_versions(connection, heads, requests)
        started = await self._started(connection, requests)
        return LogView(
            now=await connection.fetchval(self._sql["clock"]),
            heads=heads,
            keys=keys,
            aggregate_versions=aggregates,
            epochs=epochs,
            started=started,
        )

    async def _aggregate_versions(
        self, connection: asyncpg.Connection, heads: dict[int, Head], requests: Sequence[PreparedRequest]
    ) -> dict[tuple[int, str], int]:
        asked = {
            (stream.append.execution_id, draft.draft.aggregate_id)
            for request in requests
            for stream in request.streams
            if stream.append.execution_id in heads
            for draft in stream.drafts
            if draft.draft.aggregate_type != EXECUTION_AGGREGATE
        }
        if not asked:
            return {}
        rows = await connection.fetch(
            self._sql["aggregate_versions"], [a for a, _ in asked], [aggregate for _, aggregate in asked]
        )
        return {(row[0], row[1]): row[2] for row in rows if row[2] is not None}

    async def _started(
        self, connection: asyncpg.Connection, requests: Sequence[PreparedRequest]
    ) -> dict[tuple[str, str, str], KnownKey]:
        asked = [
            (request.request.tenant_id, request.request.organization_id, start.start_key)
            for request in requests
            for stream in request.streams
            if (start := stream.append.start) is not None and start.start_key
        ]
        if not asked:
            return {}
        rows = await connection.fetch(
            self._sql["started"], *(list(column) for column in zip(*asked, strict=True))
        )
        return {(row[0], row[1], row[2]): KnownKey(row[3], row[4], _stored(row, 5)) for row in rows}

    async def _write(self, connection: asyncpg.Connection, numbered: Numbered) -> None:
        await connection.execute(self._sql["insert_events"], *event_columns(numbered))
        if numbered.created:
            await connection.execute(self._sql["insert_heads"], *created_columns(numbered))
            keyed = [(head, start.start_key) for head, start in numbered.created if start.start_key]
            if keyed:
                await connection.execute(
                    self._sql["insert_start_keys"],
                    [head.tenant_id for head, _ in keyed],
                    [head.organization_id for head, _ in keyed],
                    [key for _, key in keyed],
                    [head.execution_id for head, _ in keyed],
                )
        if numbered.heads:
            await connection.execute(self._sql["move_heads"], *moved_columns(numbered.heads))
        await connection.execute(self._sql["insert_outbox"], *outbox_columns(numbered))
        await connection.execute(self._sql["notify_commit"], commit_notice(numbered))

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """Events of a version range, and where the head stood before they were read."""
        async with translated(), self._pool.acquire() as connection:
            head = await connection.fetchrow(self._sql["read_head"], execution_id)
            if head is None or (
                scope is not None and (head[0], head[1]) != (scope.tenant_id, scope.organization_id)
            ):
                raise NotFound("execution", execution_id, code="execution.not_found")
            last = min(to_version, head[2]) if to_version else head[2]
            rows = (
                await connection.fetch(self._sql["read_events"], execution_id, from_version, last, limit)
                if from_version <= last
                else []
            )
        return EventPage(
            events=tuple(_stored(row, 0) for row in rows), head_version=head[2], terminal=head[3]
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
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(
                self._sql["moved_heads"],
                list(shards),
                moved_since or _LONG_AGO,
                after[0] if after else None,
                after[1] if after else None,
                open_only,
                limit,
            )
            now = rows[0]["now"] if rows else await connection.fetchval(self._sql["clock"])
        return HeadPage(
            heads=tuple(MovedHead(**{k: v for k, v in row.items() if k != "now"}) for row in rows),
            now=now,
            more=len(rows) == limit,
        )


def _refused_by_index(exc: asyncpg.IntegrityConstraintViolationError) -> NoetlError:
    name = exc.constraint_name or "a constraint"
    if isinstance(exc, asyncpg.UniqueViolationError):
        return AlreadyExists(f"the log already has such an event ({name})", constraint=name)
    return InvalidInput(
        f"the log refuses the event ({name}): {exc.args[0] if exc.args else ''}", constraint=name
    )


def _stored(row: asyncpg.Record, first: int) -> StoredEvent:
    return StoredEvent(
        stream_version=row[first],
        aggregate_version=row[first + 1],
        ingest_time=row[first + 2],
        prev_checksum=row[first + 3],
        checksum=row[first + 4],
        body=row[first + 5],
    )
