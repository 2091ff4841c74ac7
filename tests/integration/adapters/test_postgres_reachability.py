"""The scan in PostgreSQL leaves nothing out, and finds its pages by the primary key."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.pool import LOOKUPS, open_pool
from noetl_adapters.postgres.queries import load_queries
from noetl_adapters.postgres.reachability import PostgresLogScan
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.ids import Snowflake
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.reachability import LogScan
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.reachability import LogScanCompliance

IDS = Snowflake(1021)


def prepared(request: AppendRequest) -> PreparedRequest:
    return prepare(
        request, next_event_id=lambda: IDS.next(int(time.time() * 1000)), now=datetime.now(UTC), shard_count=64
    )


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=4, application_name="test", settings=LOOKUPS)
    yield pool
    await pool.close()


class TestPostgresLogScan(LogScanCompliance):
    @pytest.fixture
    def log(self, pool: ConnectionPool) -> EventLog:
        return GroupCommit(
            PostgresEventLog(pool), prepare=prepared, signal=CommitSignal(), metrics=AppendMetrics(MetricSet())
        )

    @pytest.fixture
    def scan(self, log: EventLog, pool: ConnectionPool) -> LogScan:
        return PostgresLogScan(pool, page_events=3)

    async def test_a_page_is_read_by_the_primary_key_and_sorts_nothing(self, pool: ConnectionPool) -> None:
        sql = load_queries("reachability.sql")

        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(sql["by_primary_key"])
            rows = await connection.fetch(f"EXPLAIN {sql['events']}", 5, 0, 1000, None, None)

        plan = "\n".join(row[0] for row in rows)
        assert "Sort" not in plan.replace("Sort Key", "")
        assert "Seq Scan" not in plan

    async def test_playbooks_are_read_page_by_page(self, pool: ConnectionPool, scan: LogScan) -> None:
        for number in range(120):
            await pool.execute(
                "INSERT INTO noetl.catalog (catalog_id, tenant_id, organization_id, path, version, name, sha256,"
                " content, created_by) VALUES ($1, 'acme', 'ops', $2, 1, 'n', 's', $3, 'me')",
                number + 1,
                f"p{number}",
                f"content {number}",
            )

        texts = [text.content async for page in scan.playbooks(None) for text in page]

        assert texts == [f"content {number}" for number in range(120)]
