from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.migrate import migrate
from noetl_adapters.postgres.partitions import PostgresPartitions, week_bounds
from noetl_adapters.postgres.pool import open_pool
from noetl_core.ids import first_snowflake
from noetl_testkit.backends import PostgresBackend, fresh_database


@pytest.fixture
async def pool(postgres_server: PostgresBackend) -> AsyncIterator[ConnectionPool]:
    with fresh_database(postgres_server) as dsn:
        await migrate(dsn, shard_count=4)
        pool = await open_pool(f"{dsn}?role=noetl_api", min_size=1, max_size=8, application_name="test")
        yield pool
        await pool.close()


def id_at(moment: datetime) -> int:
    return first_snowflake(int(moment.timestamp() * 1000))


async def test_every_execution_of_the_next_four_weeks_has_its_partition(pool: ConnectionPool) -> None:
    await PostgresPartitions(pool).ensure()

    now = datetime.now(UTC)
    rows = await pool.fetch(
        "SELECT pg_get_expr(relpartbound, oid) AS bound FROM pg_class "
        "WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'noetl.event'::regclass)"
    )
    bounds = sorted(tuple(int(part) for part in row["bound"].split("'")[1::2]) for row in rows)
    assert bounds[0][0] <= id_at(now - timedelta(minutes=1))
    assert bounds[-1][1] > id_at(now + timedelta(weeks=4))
    assert all(one[1] == following[0] for one, following in pairwise(bounds))


async def test_replicas_may_make_partitions_at_once(pool: ConnectionPool) -> None:
    made = await asyncio.gather(*(PostgresPartitions(pool).ensure() for _ in range(8)))

    assert sum(made) in (5, 6)
    assert await PostgresPartitions(pool).ensure() == 0


async def test_partitions_are_made_while_appends_are_in_flight(pool: ConnectionPool) -> None:
    await PostgresPartitions(pool).ensure(weeks_ahead=0)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE noetl.event IN ROW EXCLUSIVE MODE")

        assert await PostgresPartitions(pool).ensure(weeks_ahead=2) == 2


async def test_processes_get_different_nodes(pool: ConnectionPool) -> None:
    nodes = [await PostgresPartitions(pool).next_node() for _ in range(3)]

    assert len(set(nodes)) == 3


def test_weeks_begin_on_monday_and_leave_no_gap() -> None:
    sunday = datetime(2026, 11, 15, 23, 59, 59, tzinfo=UTC)

    bounds = list(week_bounds(sunday, weeks_ahead=1))

    assert bounds == [
        (id_at(datetime(2026, 11, 9, tzinfo=UTC)), id_at(datetime(2026, 11, 16, tzinfo=UTC))),
        (id_at(datetime(2026, 11, 16, tzinfo=UTC)), id_at(datetime(2026, 11, 23, tzinfo=UTC))),
    ]


def test_just_after_the_turn_of_a_week_the_old_one_is_still_there_for_clocks_that_are_behind() -> None:
    monday = datetime(2026, 11, 16, 0, 0, 1, tzinfo=UTC)

    bounds = list(week_bounds(monday, weeks_ahead=1))

    assert bounds[0][0] == id_at(datetime(2026, 11, 9, tzinfo=UTC))
    assert len(bounds) == 3
