"""Heads of streams, listed by key."""

from __future__ import annotations

from datetime import datetime

import asyncpg
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import HiddenPage, HiddenStream, StreamHead, StreamPage

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresStreams:
    """Ports `Streams` and `HiddenStreams`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("streams.sql")

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        """Heads with ids above one, of those that moved at or after a time."""
        async with translated(), self._pool.acquire() as connection:
            # Asked for first: what moves while the page is read is not older than this.
            now, branch = await connection.fetchrow(self._sql["clock_and_branch"])
            rows = await connection.fetch(self._sql["list_streams"], after, *_whose(scope), moved_since, limit)
        heads = tuple(_head(row) for row in rows)
        return StreamPage(heads=heads, now=now, more=len(rows) == limit, log_branch=branch, scope=scope)

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        """One head by its key."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["find_stream"], execution_id, *_whose(scope))
        return None if row is None else _head(row)

    async def list_hidden(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> HiddenPage:
        """Executions that have events and no head of theirs, among so many with ids above one."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["list_hidden"], after, *_whose(scope), limit)
        return HiddenPage(
            hidden=tuple(
                HiddenStream(
                    execution_id=row["execution_id"],
                    tenant_id=row["tenant_id"],
                    organization_id=row["organization_id"],
                    has_head=row["has_head"],
                )
                for row in rows
                if row["hidden"]
            ),
            following=rows[-1]["execution_id"] if rows and rows[-1]["place"] == limit else None,
        )

    async def count(self, *, at_most: int) -> int:
        """How many have not ended, counted no further than asked."""
        async with translated(), self._pool.acquire() as connection:
            return int(await connection.fetchval(self._sql["count_open"], at_most))


def _whose(scope: Scope | None) -> tuple[str | None, str | None]:
    return (None, None) if scope is None else (scope.tenant_id, scope.organization_id)


def _head(row: asyncpg.Record) -> StreamHead:
    return StreamHead(
        execution_id=row[0],
        tenant_id=row[1],
        organization_id=row[2],
        version=row[3],
        checksum=row[4],
        terminal=row[5],
        updated_at=row[6],
    )
