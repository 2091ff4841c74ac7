"""Where results came from, by one recursive query over the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import asyncpg
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NotFound
from noetl_core.lineage import Trace, TracedResult, result_of
from noetl_core.ports.event_log import Scope
from noetl_core.ports.lineage import MAX_TRACE

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

_STORED = ("stream_version", "aggregate_version", "ingest_time", "prev_checksum", "checksum", "body")


class PostgresLineage:
    """Port `Lineage`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("lineage.sql")

    async def trace(self, scope: Scope | None, execution_id: int, step: str, *, at_version: int = 0) -> Trace:
        """The chain of a step's result; one more than is told is asked for, to know whether there are more."""
        async with translated(), self._pool.acquire() as connection:
            await self._check_owner(connection, scope, execution_id)
            rows = await connection.fetch(self._sql["trace"], execution_id, step, at_version, MAX_TRACE)
        return Trace(results=_results(rows[:MAX_TRACE]), truncated=len(rows) > MAX_TRACE)

    async def find(self, scope: Scope | None, execution_id: int, ref_id: str) -> TracedResult | None:
        """The last result of this name."""
        async with translated(), self._pool.acquire() as connection:
            await self._check_owner(connection, scope, execution_id)
            rows = await connection.fetch(self._sql["find"], execution_id, ref_id)
        return next(iter(_results(rows)), None)

    async def _check_owner(self, connection: asyncpg.Connection, scope: Scope | None, execution_id: int) -> None:
        row = await connection.fetchrow(self._sql["owner"], execution_id)
        if row is None or (scope is not None and tuple(row) != (scope.tenant_id, scope.organization_id)):
            raise NotFound("execution", execution_id, code="execution.not_found")


def _results(rows: Sequence[asyncpg.Record]) -> tuple[TracedResult, ...]:
    found: list[TracedResult] = []
    for row in rows:
        *stored, parent_ref_id = row
        result = result_of(StoredEvent(**dict(zip(_STORED, stored, strict=True))))
        if result is not None:
            found.append(replace(result, parent_ref_id=parent_ref_id))
    return tuple(found)
