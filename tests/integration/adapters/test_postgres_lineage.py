"""Lineage in PostgreSQL answers as every lineage does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.lineage import PostgresLineage
from noetl_adapters.postgres.pool import open_pool
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.ids import Snowflake
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.lineage import Lineage
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.lineage import LineageCompliance

IDS = Snowflake(1022)


def prepared(request: AppendRequest) -> PreparedRequest:
    return prepare(
        request, next_event_id=lambda: IDS.next(int(time.time() * 1000)), now=datetime.now(UTC), shard_count=64
    )


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=4, application_name="test")
    yield pool
    await pool.close()


class TestPostgresLineage(LineageCompliance):
    @pytest.fixture
    def log(self, pool: ConnectionPool) -> EventLog:
        return GroupCommit(
            PostgresEventLog(pool), prepare=prepared, signal=CommitSignal(), metrics=AppendMetrics(MetricSet())
        )

    @pytest.fixture
    def lineage(self, log: EventLog, pool: ConnectionPool) -> Lineage:
        return PostgresLineage(pool)
