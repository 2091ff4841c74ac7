"""Leases of outbox shards in PostgreSQL: rows that expire by its clock, shared out fairly among live publishers."""

from __future__ import annotations

from noetl_core.errors import InvalidInput, Unavailable
from noetl_core.ports.outbox import OutboxHolding, OutboxPublisher, fair_share

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresOutboxLeases:
    """A shard passes on only when its lease was given back or has ended."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("outbox.sql")

    async def shard_count(self) -> int:
        """How many shards this installation has."""
        async with translated():
            count: int | None = await self._pool.fetchval(self._sql["shard_count"])
        if count is None:
            raise Unavailable("the database has not been set up yet")
        return count

    async def replace(self, publisher: OutboxPublisher) -> int:
        """End the leases of earlier incarnations of the instance; returns how many there were."""
        owner = _owner(publisher)
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            ended = await connection.fetch(self._sql["give_back_of_predecessors"], publisher.instance, owner)
            await connection.execute(self._sql["forget_predecessors"], publisher.instance, owner)
        return len(ended)

    async def hold(self, publisher: OutboxPublisher, *, lease_seconds: float) -> OutboxHolding:
        """Renew what it holds, give back what exceeds its fair share, take what is free up to it."""
        owner = _owner(publisher)
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            # Unlike a delete, a lease that a crash undoes could be granted twice.
            await connection.execute("SET LOCAL synchronous_commit = on")
            await connection.execute(self._sql["announce"], owner)
            await connection.execute(self._sql["forget_silent"], lease_seconds)
            shards = await connection.fetchval(self._sql["shard_count"])
            publishers = [row["owner"] for row in await connection.fetch(self._sql["publishers"])]
            share = fair_share(shards, publishers=publishers, owner=owner)
            renewed = await connection.fetch(self._sql["renew"], owner, lease_seconds)
            held = sorted(row["shard"] for row in renewed)
            if len(held) > share:
                await connection.execute(self._sql["give_back"], owner, held[share:])
                held = held[:share]
            elif len(held) < share:
                acquired = await connection.fetch(self._sql["acquire"], owner, lease_seconds, share - len(held))
                held += [row["shard"] for row in acquired]
        return OutboxHolding(shards=frozenset(held), fair_share=share, live_publishers=len(publishers))

    async def release(self, publisher: OutboxPublisher) -> None:
        """Give everything back at once."""
        owner = _owner(publisher)
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            await connection.execute(self._sql["give_back_all"], owner)
            await connection.execute(self._sql["forget"], owner)


def _owner(publisher: OutboxPublisher) -> str:
    if not publisher.instance or "/" in publisher.incarnation:
        raise InvalidInput(f"{publisher} cannot own anything: it has no instance, or a slash where none may be")
    return f"{publisher.instance}/{publisher.incarnation}"
