from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.routing_snapshots import PostgresRoutingSnapshots
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.ids import Snowflake
from noetl_core.routing_snapshots import MAX_BYTES
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import SHARDS
from noetl_testkit.compliance.routing_snapshots import (
    EXECUTION,
    RoutingPlace,
    RoutingSnapshotsCompliance,
    begin,
    own,
    snapshot,
)


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=2, application_name="test")
    yield pool
    await pool.close()


@pytest.fixture
async def log(pool: ConnectionPool) -> AsyncIterator[GroupCommit]:
    ids = Snowflake(7)

    def prepared(append: AppendRequest) -> PreparedRequest:
        return prepare(
            append,
            next_event_id=lambda: ids.next(time.time_ns() // 1_000_000),
            now=datetime.now(UTC),
            shard_count=SHARDS,
        )

    log = GroupCommit(
        PostgresEventLog(pool), prepare=prepared, signal=CommitSignal(), metrics=AppendMetrics(MetricSet())
    )
    yield log
    await log.close()


@pytest.fixture
def place(pool: ConnectionPool, log: GroupCommit) -> RoutingPlace:
    """With the grants that api has."""
    return RoutingPlace(store=PostgresRoutingSnapshots(pool), log=log, leases=PostgresShardLeases(pool))


class TestPostgresRoutingSnapshots(RoutingSnapshotsCompliance):
    @pytest.fixture
    def place(self, pool: ConnectionPool, log: GroupCommit) -> RoutingPlace:
        return RoutingPlace(store=PostgresRoutingSnapshots(pool), log=log, leases=PostgresShardLeases(pool))


async def test_the_largest_that_a_planner_makes_fits(place: RoutingPlace) -> None:
    await begin(place)
    fence = await own(place)

    assert await place.store.keep(snapshot(5, body=b"x" * MAX_BYTES), fence=fence)


async def test_one_beyond_the_head_is_of_a_log_that_is_lost_and_in_nobodys_way(
    place: RoutingPlace, installed_dsn: str
) -> None:
    await begin(place)
    fence = await own(place)
    await place.store.keep(snapshot(5), fence=fence)
    admin = await asyncpg.connect(installed_dsn)
    try:
        await admin.execute("UPDATE noetl.routing_snapshot SET stream_version = 1000")
    finally:
        await admin.close()

    assert await place.store.keep(snapshot(8), fence=fence)

    found = await place.store.find(EXECUTION)
    assert found == snapshot(8)


async def test_those_of_executions_that_are_gone_are_dropped(place: RoutingPlace, installed_dsn: str) -> None:
    await begin(place)
    await place.store.keep(snapshot(5), fence=await own(place))
    admin = await asyncpg.connect(installed_dsn)
    try:
        await admin.execute("DELETE FROM noetl.stream")
    finally:
        await admin.close()

    assert await place.store.drop_ended() == 1
    assert await place.store.find(EXECUTION) is None
