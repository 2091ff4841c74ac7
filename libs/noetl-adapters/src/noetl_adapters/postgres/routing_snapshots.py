"""Routing snapshots in PostgreSQL: one row an execution, written under the fence of its owner."""

from __future__ import annotations

from noetl_core.append import Fence
from noetl_core.errors import Fenced, InvalidInput
from noetl_core.routing_snapshots import RoutingSnapshot

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresRoutingSnapshots:
    """Port `RoutingSnapshotStore`; each call is one statement."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("routing_snapshots.sql")

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """The one that is kept."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["find"], execution_id)
        if row is None:
            return None
        return RoutingSnapshot(
            execution_id=row[0],
            stream_version=row[1],
            event_checksum=row[2],
            rules=row[3],
            state_format=row[4],
            body=row[5],
            body_sha256=row[6],
        )

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """Put it in the place of an older one."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(
                self._sql["keep"],
                snapshot.execution_id,
                snapshot.stream_version,
                snapshot.event_checksum,
                snapshot.rules,
                snapshot.state_format,
                snapshot.body,
                snapshot.body_sha256,
                fence.role,
                fence.shard,
                fence.epoch,
            )
        current = row["epoch"] or 0
        if current != fence.epoch:
            raise Fenced(role=fence.role, shard=fence.shard, epoch=fence.epoch, current=current)
        if row["shard"] not in (None, fence.shard):
            raise InvalidInput(f"fence of shard {fence.shard} given for an execution of another shard")
        return bool(row["kept"])

    async def drop_ended(self) -> int:
        """Drop those that nobody will ask for."""
        async with translated(), self._pool.acquire() as connection:
            return int(await connection.fetchval(self._sql["drop_ended"]))
