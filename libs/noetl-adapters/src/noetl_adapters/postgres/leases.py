"""Shard leases in PostgreSQL: rows that expire by its clock, with an epoch that only grows."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from noetl_core.errors import InvalidInput
from noetl_core.leasing import LeaseRow, share_out
from noetl_core.ports.leases import Holding, Installation, Replica, ShardLease

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

MAX_LEASE_SECONDS = 3600.0
_REMEMBERED_INCARNATIONS = 32


class PostgresShardLeases:
    """Port `ShardLeases`; each call is one transaction."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("leases.sql")

    async def installation(self) -> Installation:
        """The facts of this installation."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["installation"])
        if row is None:
            raise InvalidInput("the database has no installation; migrate it first")
        return Installation(shard_count=row[0], log_generation=row[1])

    async def hold(self, replica: Replica, *, lease_seconds: float) -> Holding:
        """Renew, give back and claim, in this order and at once."""
        if not 0 < lease_seconds <= MAX_LEASE_SECONDS:
            raise InvalidInput(f"a lease lasts more than 0 and at most {MAX_LEASE_SECONDS:g} seconds")
        if not (replica.instance and replica.incarnation):
            raise InvalidInput("a replica has an instance name and an incarnation")
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            runtime = await self._lock_runtime(connection, replica)
            if replica.incarnation in runtime["deposed"]:
                return Holding(
                    leases=(),
                    live_instances=await self._live(connection, replica.role),
                    log_branch=await self._log_branch(connection),
                )
            reborn = runtime["incarnation"] != replica.incarnation
            deposed = [*runtime["deposed"], runtime["incarnation"]] if reborn else runtime["deposed"]
            await connection.execute(
                self._sql["renew_runtime"],
                runtime["runtime_id"],
                replica.incarnation,
                deposed[-_REMEMBERED_INCARNATIONS:],
                replica.address,
                lease_seconds,
            )
            next_expiry = await connection.fetchval(self._sql["next_expiry"], replica.role, replica.instance)
            rows = await self._lock_shards(connection, replica.role)
            live_instances = await self._live(connection, replica.role)
            shares = share_out(rows, instance=replica.instance, reborn=reborn, live_instances=live_instances)
            held = await connection.fetch(
                self._sql["hold_shards"],
                replica.role,
                runtime["runtime_id"],
                replica.instance,
                lease_seconds,
                [shard for shard, _ in shares.held],
                [epoch for _, epoch in shares.held],
            )
            log_branch = await self._log_branch(connection)
            if shares.given_back:
                await connection.execute(self._sql["give_back"], replica.role, list(shares.given_back))
        leases = [
            ShardLease(
                role=replica.role,
                shard=row["shard_id"],
                epoch=row["epoch"],
                instance=replica.instance,
                address=replica.address,
                leased_until=row["leased_until"],
            )
            for row in held
        ]
        return Holding(
            leases=tuple(sorted(leases, key=lambda lease: lease.shard)),
            live_instances=live_instances,
            log_branch=log_branch,
            next_expiry_seconds=float(next_expiry),
        )

    async def release(self, replica: Replica) -> int:
        """Give everything back, unless a later incarnation has it already."""
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            runtime = await connection.fetchrow(self._sql["lock_runtime"], replica.role, replica.instance)
            if runtime is None or runtime["incarnation"] != replica.incarnation:
                return 0
            rows = await self._lock_shards(connection, replica.role)
            own = [row.shard for row in rows if row.instance == replica.instance]
            await connection.execute(self._sql["give_back"], replica.role, own)
            await connection.execute(self._sql["retire_runtime"], runtime["runtime_id"])
        return len(own)

    async def list_shards(self, role: str) -> Sequence[ShardLease]:
        """Every shard of a role; who let a lease expire does not own it."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["list_shards"], role)
        return [
            ShardLease(
                role=role,
                shard=row["shard_id"],
                epoch=row["epoch"],
                instance=row["instance"] or "",
                address=row["address"] or "",
                leased_until=row["leased_until"],
            )
            for row in rows
        ]

    async def _lock_runtime(self, connection: asyncpg.Connection, replica: Replica) -> asyncpg.Record:
        runtime = await connection.fetchrow(self._sql["lock_runtime"], replica.role, replica.instance)
        if runtime is None:
            await connection.execute(
                self._sql["announce"], replica.role, replica.instance, replica.incarnation, replica.address
            )
            await connection.execute(self._sql["forget_dead_runtimes"], replica.role, replica.instance)
            runtime = await connection.fetchrow(self._sql["lock_runtime"], replica.role, replica.instance)
        return runtime

    async def _lock_shards(self, connection: asyncpg.Connection, role: str) -> list[LeaseRow]:
        rows = await connection.fetch(self._sql["lock_shards"], role)
        if not rows:
            raise InvalidInput(f"no shards are shared in the role {role!r}")
        return [
            LeaseRow(shard=row["shard_id"], epoch=row["epoch"], instance=row["instance"], expired=row["expired"])
            for row in rows
        ]

    async def _live(self, connection: asyncpg.Connection, role: str) -> int:
        return int(await connection.fetchval(self._sql["live_instances"], role))

    async def _log_branch(self, connection: asyncpg.Connection) -> str:
        return str(await connection.fetchval(self._sql["log_branch"]))
