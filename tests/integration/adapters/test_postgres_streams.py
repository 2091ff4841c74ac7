from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.streams import PostgresStreams
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.ids import Snowflake
from noetl_core.ports.event_log import EventLog
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import SHARDS
from noetl_testkit.compliance.streams import StreamsCompliance


class TestPostgresStreams(StreamsCompliance):
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
