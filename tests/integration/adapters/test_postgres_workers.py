from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.workers import PostgresWorkerPresence
from noetl_testkit.compliance.leases import replica
from noetl_testkit.compliance.workers import ADA, BOB, WorkerPresenceCompliance


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=8, application_name="test")
    yield pool
    await pool.close()


class TestPostgresWorkerPresence(WorkerPresenceCompliance):
    @pytest.fixture
    def workers(self, pool: ConnectionPool) -> PostgresWorkerPresence:
        return PostgresWorkerPresence(pool)


async def test_the_silent_are_not_listed_and_forgotten_after_a_day(pool: ConnectionPool) -> None:
    workers = PostgresWorkerPresence(pool)
    await workers.report(ADA, lease_seconds=60)
    await pool.execute("UPDATE noetl.runtime SET leased_until = clock_timestamp() - interval '2 days'")

    assert await workers.list() == []
    await workers.report(BOB, lease_seconds=60)
    assert [row["instance"] for row in await pool.fetch("SELECT instance FROM noetl.runtime")] == ["bob"]


async def test_other_replicas_are_no_workers(pool: ConnectionPool) -> None:
    await PostgresShardLeases(pool).hold(replica("planner-1"), lease_seconds=30)

    assert await PostgresWorkerPresence(pool).list() == []
