"""Columns beside the bytes of events: what they say otherwise is named, and how the database spells it is not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_columns import PostgresEventColumns
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.pool import open_pool
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.canonical import JsonObject
from noetl_core.ids import Snowflake
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import SHARDS, note, request, start

CONTEXT: JsonObject = {
    "yes": True,
    "one": 1,
    "large": 1e21,
    "no sum of powers of two": 1e23,
    "small": 1e-7,
    "safe": 9007199254740991,
    "zero": "\0",
    "nothing": None,
}


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=2, application_name="test")
    yield pool
    await pool.close()


@pytest.fixture
async def admin(installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(installed_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def execution_id(pool: ConnectionPool) -> int:
    """One whose second event has a result of everything that a database spells in its own way."""
    ids = Snowflake(8)

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
    started = await start(log)
    result: JsonObject = {"status": "ok", "reference": None, "parent_ref": None, "context": CONTEXT}
    await log.append(request(started, replace(note("told"), result=result)))
    await log.close()
    return started


async def named(pool: ConnectionPool, execution_id: int) -> list[tuple[int, str]]:
    page = await PostgresEventColumns(pool).check_columns(None, [execution_id])
    return [(one.stream_version, one.message.split("): ")[1].split(" is ")[0]) for _, one in page.findings]


async def test_what_the_database_spells_in_its_own_way_is_the_same(pool: ConnectionPool, execution_id: int) -> None:
    assert await named(pool, execution_id) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("{context,yes}", "1"),
        ("{context,one}", "true"),
        ("{context,one}", '"1"'),
        ("{context,safe}", "9007199254740992"),
        ("{context,large}", "1000000000000000000001"),
        ("{context,nothing}", "false"),
        ("{context,more}", "null"),
    ],
)
async def test_a_result_that_says_something_else_is_named(
    pool: ConnectionPool, admin: asyncpg.Connection, execution_id: int, path: str, value: str
) -> None:
    changed = await admin.execute(
        "UPDATE noetl.event SET result = jsonb_set(result, $2::text[], $3::text::jsonb) "
        "WHERE execution_id = $1 AND stream_version = 2",
        execution_id,
        path.strip("{}").split(","),
        value,
    )

    assert changed == "UPDATE 1"
    assert await named(pool, execution_id) == [(2, "result")]


async def test_a_result_that_is_gone_is_named(
    pool: ConnectionPool, admin: asyncpg.Connection, execution_id: int
) -> None:
    await admin.execute("UPDATE noetl.event SET result = NULL WHERE execution_id = $1", execution_id)

    assert await named(pool, execution_id) == [(2, "result")]


_PUT_BESIDE = """
INSERT INTO noetl.event (
    execution_id, stream_version, event_id, tenant_id, organization_id, event_type, aggregate_type, aggregate_id,
    aggregate_version, idempotency_key, content_sha256, event_time, ingest_time, prev_checksum, checksum, body)
SELECT execution_id, $2, event_id + 1, tenant_id, organization_id, event_type, aggregate_type, aggregate_id,
       aggregate_version, idempotency_key || 'x', content_sha256, event_time, ingest_time, prev_checksum, checksum, body
FROM noetl.event
WHERE execution_id = $1 AND stream_version = 2"""


@pytest.mark.parametrize("version", [-7, 0, 3, 40])
async def test_an_event_that_stands_where_nobody_reads_its_seal_is_named(
    pool: ConnectionPool, admin: asyncpg.Connection, execution_id: int, version: int
) -> None:
    await admin.execute(_PUT_BESIDE, execution_id, version)

    page = await PostgresEventColumns(pool).check_columns(None, [execution_id])

    assert {(told, one.code, one.stream_version) for told, one in page.findings} == {
        (execution_id, "event.column_differs", version)
    }
    assert "it stands outside of versions 1 to 2" in page.findings[0][1].message


async def test_bytes_that_cannot_be_read_are_named(
    pool: ConnectionPool, admin: asyncpg.Connection, execution_id: int
) -> None:
    await admin.execute(
        r"UPDATE noetl.event SET body = '\xff' WHERE execution_id = $1 AND stream_version = 2", execution_id
    )

    page = await PostgresEventColumns(pool).check_columns(None, [execution_id])

    ((told, finding),) = page.findings
    assert (told, finding.code, finding.stream_version) == (execution_id, "event.column_differs", 2)
    assert finding.message.startswith("event 2: its bytes cannot be read: ")


async def test_an_event_that_was_taken_from_another_execution_is_named(
    pool: ConnectionPool, admin: asyncpg.Connection, execution_id: int
) -> None:
    await admin.execute(
        "UPDATE noetl.event SET body = convert_to(replace(convert_from(body, 'UTF8'), $1::text, '7'), 'UTF8') "
        "WHERE execution_id = $2 AND stream_version = 2",
        str(execution_id),
        execution_id,
    )

    assert "execution_id" in [name for _, name in await named(pool, execution_id)]
