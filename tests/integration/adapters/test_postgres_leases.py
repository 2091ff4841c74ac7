from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.pool import open_pool
from noetl_testkit.compliance.leases import ShardLeasesCompliance, replica


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=8, application_name="test")
    yield pool
    await pool.close()


class TestPostgresShardLeases(ShardLeasesCompliance):
    @pytest.fixture
    def leases(self, pool: ConnectionPool) -> PostgresShardLeases:
        return PostgresShardLeases(pool)


async def test_replicas_that_died_long_ago_are_forgotten(pool: ConnectionPool, installed_dsn: str) -> None:
    leases = PostgresShardLeases(pool)
    await leases.hold(replica("old"), lease_seconds=30)
    await leases.release(replica("old"))

    await leases.hold(replica("new"), lease_seconds=30)

    assert [row["instance"] for row in await pool.fetch("SELECT instance FROM noetl.runtime")] == ["new"]
