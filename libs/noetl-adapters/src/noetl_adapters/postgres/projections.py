"""Projections in PostgreSQL: a batch is one transaction, and the rows themselves refuse what is old."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from noetl_core.canonical import decode, encode
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.ids import MAX_ID, parse_id
from noetl_core.ports.deadlines import LateExecution, LatePlace
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LiveExecution, LivePage, RowPage, RowPlace
from noetl_core.ports.projection_store import (
    Barrier,
    ProjectedExecution,
    Refusal,
    ShardCheckpoint,
    SilentPlace,
    StoredProjection,
    Written,
)
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentCommand
from noetl_core.ports.quiet import QuietExecution
from noetl_core.state_json import decode_state
from noetl_core.surfaces.shapes import Row, Surface

from noetl_adapters.postgres.arrays import numbers
from noetl_adapters.postgres.connection_pool import Connections, OneConnection
from noetl_adapters.postgres.pool import REFUSED_ROWS, translated
from noetl_adapters.postgres.projection_rows import execution_row
from noetl_adapters.postgres.queries import load_queries
from noetl_adapters.postgres.stored_rows import read_page
from noetl_adapters.postgres.surface_tables import OBJECTS, TABLES, document_of, row_of, upsert

_NO_ROWS: Mapping[str, Row] = {}


class PostgresProjections:
    """Port `ProjectionStore`, over tables that only the projector's role may write."""

    def __init__(self, pool: Connections) -> None:
        self._pool = pool
        self._sql = load_queries("projections.sql")
        self._statements: dict[tuple[Surface, ...], str] = {}

    async def load(self, execution_ids: Collection[int]) -> Mapping[int, StoredProjection]:
        """What is stored of these executions."""
        rows = await self._fetch("load_rows", numbers(execution_ids))
        return {row[0]: _stored(row) for row in rows}

    async def versions(self, execution_ids: Collection[int]) -> Mapping[int, int]:
        """Versions that the rows of these executions include."""
        return {row[0]: row[1] for row in await self._fetch("row_versions", numbers(execution_ids))}

    async def write(self, executions: Sequence[ProjectedExecution]) -> Written:
        """Store what is newer and not of a deposed owner; raises `InvalidInput` if some row cannot be held."""
        if not executions:
            raise InvalidInput("a batch of projections holds at least one execution")
        surfaces: list[Surface] = []
        documents = [encode([execution_row(one) for one in executions]).decode()]
        for surface in TABLES:
            rows = [row for one in executions for row in one.rows.get(surface, _NO_ROWS).values()]
            if rows:
                surfaces.append(surface)
                documents.append(document_of(surface, rows))
        try:
            async with translated(), self._pool.acquire() as connection:
                written = await self._written(connection, executions, self._statement(tuple(surfaces)), documents)
                wanted = {one.state.execution.execution_id for one in executions}
                refused = await self._refusals(connection, wanted - {row[0] for row in written})
                projected_at = max([row[1] for row in written], default=None) or await connection.fetchval(
                    self._sql["clock"]
                )
        except REFUSED_ROWS as exc:
            raise InvalidInput(f"the database refuses a projection: {exc}") from exc
        return Written(projected_at=projected_at, refused=refused)

    @asynccontextmanager
    async def together(self) -> AsyncIterator[PostgresProjections]:
        """One transaction, for as long as the pool's sessions allow; a write in it is a savepoint."""
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            yield PostgresProjections(OneConnection(connection))

    async def _written(
        self,
        connection: asyncpg.Connection,
        executions: Sequence[ProjectedExecution],
        statement: str,
        documents: Sequence[str],
    ) -> list[asyncpg.Record]:
        replacing = [
            # No barrier is beyond what replaces the row in the end, whatever comes first on the way there.
            (one.state.execution.execution_id, one.epoch, one.replaces, max(one.replaces, one.state.stream_version))
            for one in executions
            if one.replaces
        ]
        written: list[asyncpg.Record]
        if not replacing:  # One statement, and so one round trip and one transaction.
            written = await connection.fetch(statement, *documents)
            return written
        async with connection.transaction():
            await connection.execute(self._sql["remove_replaced"], *_columns(replacing, width=4))
            written = await connection.fetch(statement, *documents)
        return written

    def _statement(self, surfaces: tuple[Surface, ...]) -> str:
        """Writes executions with the rows of these surfaces; a batch without loops does not pay for loops."""
        known = self._statements.get(surfaces)
        if known is None:
            parts = [f"written AS (\n{self._sql['write_executions']}\n)"]
            parts += [upsert(surface, parameter=place) for place, surface in enumerate(surfaces, start=2)]
            known = f"WITH {', '.join(parts)}\nSELECT execution_id, projected_at FROM written"
            self._statements[surfaces] = known
        return known

    async def find_objects(self, keys: Mapping[int, Collection[str]]) -> Mapping[int, Mapping[str, Row]]:
        """Rows of business objects by execution and key."""
        pairs = [(execution_id, key) for execution_id, named in keys.items() for key in named]
        found: dict[int, dict[str, Row]] = {}
        for record in await self._fetch_text(OBJECTS, *_columns(pairs, width=2)):
            row = row_of(Surface.BUSINESS_OBJECTS, record, offset=2)
            found.setdefault(record[0], {})[record[1]] = row
        return found

    async def list_rows(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: RowPlace | None = None, limit: int
    ) -> RowPage:
        """One page of rows of all surfaces, of one moment."""
        async with translated(), self._pool.acquire() as connection:
            return await read_page(connection, scope, execution_ids, after=after, limit=limit)

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int) -> LivePage:
        """Executions that have a row on any surface, among so many with ids above one."""
        # One more than asked for tells whether there is another page.
        rows = await self._fetch("list_live", after, limit + 1)
        found = [LiveExecution(**row) for row in rows[:limit]]
        return LivePage(
            executions=tuple(
                one
                for one in found
                if scope is None or (one.tenant_id, one.organization_id) == (scope.tenant_id, scope.organization_id)
            ),
            following=found[-1].execution_id if len(rows) > limit else None,
        )

    async def _refusals(self, connection: asyncpg.Connection, execution_ids: set[int]) -> Mapping[int, Refusal]:
        if not execution_ids:
            return {}
        rows = await connection.fetch(self._sql["refusals"], list(execution_ids))
        stored = {row[0]: Refusal(stream_version=row[1], epoch=row[2]) for row in rows}
        return {one: stored.get(one, Refusal(stream_version=0, epoch=0)) for one in execution_ids}

    async def checkpoints(self, shards: Collection[int]) -> Mapping[int, ShardCheckpoint]:
        """How far these shards have come."""
        return {
            row[0]: ShardCheckpoint(
                shard=row[0],
                last_event_id=row[1],
                projected_at=row[2],
                lag_seconds=None if row[3] is None else row[3] / 1000,
                caught_up_to=row[4],
            )
            for row in await self._fetch("checkpoints", list(shards))
        }

    async def write_checkpoints(self, checkpoints: Sequence[ShardCheckpoint]) -> None:
        """Note how far shards have come."""
        rows = [
            (
                one.shard,
                one.last_event_id,
                one.projected_at,
                None if one.lag_seconds is None else one.lag_seconds * 1000,
                one.caught_up_to,
            )
            for one in checkpoints
        ]
        async with translated(), self._pool.acquire() as connection:
            await connection.execute(self._sql["write_checkpoints"], *_columns(rows, width=5))

    async def write_barriers(self, execution_ids: Collection[int]) -> list[Barrier]:
        """Close what is committed of these executions, all in one statement."""
        return [_barrier(row) for row in await self._fetch("write_barriers", numbers(execution_ids))]

    async def keep_barrier(self, execution_id: int, version: int) -> None:
        """The log tells of it, or is about to."""
        await self._fetch("keep_barrier", execution_id, version)

    async def barriers(self, execution_id: int) -> list[Barrier]:
        """Of one execution, oldest first."""
        return [_barrier(row) for row in await self._fetch("barriers", execution_id)]

    async def find_execution(self, scope: Scope | None, execution_id: int) -> ExecutionView | None:
        """One row by its key."""
        rows = await self._fetch("find_execution", execution_id)
        if not rows or (scope is not None and (rows[0][1], rows[0][2]) != (scope.tenant_id, scope.organization_id)):
            return None
        return _view(rows[0], state=rows[0][15])

    async def list_executions(
        self,
        scope: Scope,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        """Rows by key, from the newest; a page token is the id of the last row before it."""
        below = parse_id(page_token, what="page_token") if page_token else MAX_ID
        # One row more than asked for tells whether there is another page.
        arguments: list[Any] = [scope.tenant_id, scope.organization_id, below, page_size + 1]
        if parent_execution_id is not None:
            rows = await self._fetch("list_children", *arguments, parent_execution_id, status, path)
        elif path:
            rows = await self._fetch("list_executions_by_path", *arguments, path, status)
        elif status:
            rows = await self._fetch("list_executions_by_status", *arguments, status)
        else:
            rows = await self._fetch("list_executions", *arguments)
        shown = rows[:page_size]
        return ExecutionPage(
            executions=tuple(_view(row) for row in shown),
            next_page_token=str(shown[-1][0]) if len(rows) > page_size else "",
        )

    async def silent_commands(self, *, limit: int, after: SilentPlace | None = None) -> tuple[SilentCommand, ...]:
        """Claimed commands whose lease is over."""
        if after is None:
            rows = await self._fetch("silent_commands", limit)
        else:
            rows = await self._fetch("silent_commands_after", limit, *after)
        return tuple(
            SilentCommand(**{**row, "worker_id": row["worker_id"] or "", "trace": row["trace"] or ""}) for row in rows
        )

    async def quiet_executions(self, *, quiet_seconds: float, limit: int, after: int = 0) -> tuple[QuietExecution, ...]:
        """Executions without an event for so long, oldest first."""
        return tuple(
            QuietExecution(
                execution_id=row[0], tenant_id=row[1], organization_id=row[2], path=row[3], quiet_since=row[4]
            )
            for row in await self._fetch("quiet_executions", limit, after, quiet_seconds)
        )

    async def passed_deadlines(self, *, limit: int, after: LatePlace | None = None) -> tuple[LateExecution, ...]:
        """Executions whose next deadline has passed."""
        if after is None:
            rows = await self._fetch("passed_deadlines", limit)
        else:
            rows = await self._fetch("passed_deadlines_after", limit, *after)
        return tuple(LateExecution(**row) for row in rows)

    async def _fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._fetch_text(self._sql[query], *arguments)

    async def _fetch_text(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        async with translated():
            return await self._pool.fetch(statement, *arguments)


def _columns(rows: Sequence[tuple[Any, ...]], *, width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _stored(row: asyncpg.Record) -> StoredProjection:
    try:
        state = decode_state(row[1].encode())
    except Corrupt:
        state = None
    return StoredProjection(state=state, stream_version=row[2], epoch=row[3], upcasters=row[4] or "")


def _barrier(row: asyncpg.Record) -> Barrier:
    return Barrier(execution_id=row[0], shard=row[1], version=row[2], last_event_id=row[3], committed_at=row[4])


def _view(row: asyncpg.Record, *, state: str | None = None) -> ExecutionView:
    return ExecutionView(
        execution_id=row[0],
        tenant_id=row[1],
        organization_id=row[2],
        path=row[3],
        version=row[4],
        catalog_id=row[5],
        status=row[6],
        last_event_type=row[7],
        last_node_name=row[8] or "",
        start_time=row[9],
        end_time=row[10],
        error=_object(row[11]) if row[11] is not None else None,
        stream_version=row[12],
        parent_execution_id=str(row[13]) if row[13] is not None else "",
        upcasters=row[14] or "",
        state=_object(state) if state is not None else {},
    )


def _object(text: str) -> Mapping[str, Any]:
    value = decode(text.encode())
    if not isinstance(value, dict):
        raise Corrupt("a projection holds something that is not an object")
    return value
