"""Who stands below an execution, told by the heads of streams."""

from __future__ import annotations

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresDescendants:
    """Port `Descendants`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("descendants.sql")

    async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
        """Descendants that have not ended, those nearest to the execution first."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["open_descendants"], execution_id, limit)
        return tuple(row[0] for row in rows)

    async def has_children(self, execution_id: int) -> bool:
        """Whether anything was ever started under it."""
        async with translated(), self._pool.acquire() as connection:
            return bool(await connection.fetchval(self._sql["has_children"], execution_id))
