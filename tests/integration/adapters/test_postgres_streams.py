from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.queries import load_queries
from noetl_adapters.postgres.streams import PostgresStreams
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.ids import Snowflake
from noetl_core.ports.event_log import EventLog
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import ACME, SHARDS, note, request, start
from noetl_testkit.compliance.streams import HiddenStreamsCompliance, StreamsCompliance


class OnPostgres:
    """With the grants that api has."""

    @pytest.fixture
    async def pool(self, api_dsn: str) -> AsyncIterator[ConnectionPool]:
        pool = await open_pool(api_dsn, min_size=1, max_size=2, application_name="test")
        yield pool
        await pool.close()

    @pytest.fixture
    async def log(self, pool: ConnectionPool) -> AsyncIterator[GroupCommit]:
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
    def streams(self, log: EventLog, pool: ConnectionPool) -> PostgresStreams:
        return PostgresStreams(pool)


class TestPostgresStreams(OnPostgres, StreamsCompliance):
    """Heads."""


class TestPostgresHiddenStreams(OnPostgres, HiddenStreamsCompliance):
    """Executions by their events."""

    @pytest.fixture
    async def owner(self, installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(installed_dsn)
        yield connection
        await connection.close()

    @pytest.fixture(autouse=True)
    def _owned(self, owner: asyncpg.Connection) -> None:
        self._owner = owner

    async def give_away(self, log: EventLog, execution_id: int) -> None:
        await self._owner.execute("UPDATE noetl.stream SET tenant_id = 'evil' WHERE execution_id = $1", execution_id)

    async def test_an_execution_whose_head_is_gone_is_found(
        self, log: EventLog, streams: PostgresStreams, owner: asyncpg.Connection
    ) -> None:
        first, second = await start(log), await start(log)
        await log.append(request(second, note("second")))
        await owner.execute("DELETE FROM noetl.stream WHERE execution_id = $1", second)

        (found,) = (await streams.list_hidden(ACME)).hidden

        assert (found.execution_id, found.has_head) == (second, False)
        assert [head.execution_id for head in (await streams.list_streams(ACME)).heads] == [first]

    async def test_looking_takes_one_step_an_execution_however_long_histories_are(
        self, log: EventLog, streams: PostgresStreams, owner: asyncpg.Connection
    ) -> None:
        for _ in range(3):
            await log.append(request(await start(log), *(note(str(number)) for number in range(500))))
        await owner.execute("ANALYZE noetl.event")
        query = load_queries("streams.sql")["list_hidden"]

        (plan,) = await owner.fetchrow(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", 0, None, None, 100)

        assert rows_read(json.loads(plan)[0]["Plan"]) == 3


def rows_read(node: dict[str, Any]) -> int:
    """Of events, by all scans of a plan."""
    below = sum(rows_read(one) for one in node.get("Plans", ()))
    is_of_events = str(node.get("Relation Name", "")).startswith("event_")
    return below + (round(node["Actual Rows"] * node["Actual Loops"]) if is_of_events else 0)
