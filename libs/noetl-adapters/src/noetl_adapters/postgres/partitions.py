"""Partitions of the log, made ahead of the executions whose events they will hold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from noetl_core.ids import first_snowflake

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

WEEKS_AHEAD = 4
_WEEK = timedelta(days=7)
_FIRST_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
_CLOCK_SKEW = timedelta(days=1)
"""Ids are made by the clocks of replicas; one that is behind at the start of a week still finds its partition."""


class PostgresPartitions:
    """Makes the weeks that executions of now and of the near future need."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("partitions.sql")

    async def next_node(self) -> int:
        """A number under which this process alone makes snowflakes, until 1024 others have started."""
        async with translated(), self._pool.acquire() as connection:
            return int(await connection.fetchval(self._sql["next_node"]))

    async def ensure(self, *, weeks_ahead: int = WEEKS_AHEAD) -> int:
        """Make what is missing; returns how many partitions that were."""
        made = 0
        async with translated(), self._pool.acquire() as connection:
            now = await connection.fetchval(self._sql["clock"])
            for lower, upper in week_bounds(now, weeks_ahead=weeks_ahead):
                made += await connection.fetchval(self._sql["ensure_partition"], lower, upper)
        return made


def week_bounds(now: datetime, *, weeks_ahead: int) -> Iterator[tuple[int, int]]:
    """Bounds of execution ids, week by week: the current one and those ahead."""
    start = _FIRST_MONDAY + (now - _CLOCK_SKEW - _FIRST_MONDAY) // _WEEK * _WEEK
    end = _FIRST_MONDAY + (now - _FIRST_MONDAY) // _WEEK * _WEEK + _WEEK * weeks_ahead
    while start <= end:
        yield _first_id(start), _first_id(start + _WEEK)
        start += _WEEK


def _first_id(moment: datetime) -> int:
    return first_snowflake(int(moment.timestamp() * 1000))
