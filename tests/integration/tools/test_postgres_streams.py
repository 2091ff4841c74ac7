"""Streams from a real server: chunks of the size that was asked for, and never more than two of them in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import pytest
from noetl_core.canonical import JsonValue
from noetl_testkit.backends import PostgresBackend, fresh_database
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.http_clients import HttpClients
from noetl_worker.tools.postgres import PostgresTool
from noetl_worker.tools.postgres_pools import PostgresLimits, PostgresPools
from noetl_worker.tools.script_source import ScriptLimits, ScriptSources

ROWS = 200_000


class Counting:
    """Takes chunks, holds the last one as a stream does, and remembers how many rows each had."""

    def __init__(self, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self.sizes: list[int] = []
        self.first: JsonValue = None
        self._held: list[JsonValue] = []

    async def put(self, rows: list[JsonValue]) -> None:
        self.first = rows[0] if self.first is None else self.first
        self.sizes.append(len(rows))
        self._held = rows


@pytest.fixture
def dsn(postgres_server: PostgresBackend) -> Iterator[str]:
    with fresh_database(postgres_server) as dsn:
        yield dsn


@pytest.fixture
async def tool(dsn: str) -> AsyncIterator[PostgresTool]:
    credentials = InMemoryToolCredentials()
    credentials.add("db", "postgres", {"dsn": dsn})
    async with PostgresPools(PostgresLimits()) as pools, HttpClients() as clients:
        scripts = ScriptSources(limits=ScriptLimits(), clients=clients, credentials=credentials)
        yield PostgresTool(pools, credentials=credentials, scripts=scripts)


async def run(tool: PostgresTool, command: str, sink: Counting) -> Outcome:
    return await tool.run(
        ToolCall(
            tenant_id="default",
            organization_id="default",
            execution_id=1,
            step="s",
            kind="postgres",
            config={"command": command},
            auth="db",
            chunks=sink,
        )
    )


async def test_a_long_result_takes_the_memory_of_a_few_chunks(tool: PostgresTool) -> None:
    command = "SELECT n, repeat('x', 100) || n AS text FROM generate_series(1, 200000) n"
    await run(tool, "SELECT 1 AS n", Counting(1))  # what is loaded once is not counted
    sink = Counting(1000)
    gc.collect()
    tracemalloc.start()
    try:
        outcome = await run(tool, command, sink)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert outcome.error is None
    assert sink.sizes == [1000] * (ROWS // 1000)
    assert isinstance(outcome.data, dict)
    assert (outcome.data["row_count"], outcome.data["columns"]) == (ROWS, ["n", "text"])
    assert "rows" not in outcome.data
    assert peak < 8_000_000  # all rows would be more than 60 MB


async def test_the_last_statement_streams_and_what_is_no_query_says_what_it_did(tool: PostgresTool) -> None:
    rows, nothing = Counting(2), Counting(2)
    table = await run(tool, "CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 5)", nothing)
    queried = await run(tool, "SELECT count(*) AS all FROM t; SELECT n FROM t ORDER BY n", rows)
    returned = Counting(10)
    updated = await run(tool, "UPDATE t SET n = n + 1 RETURNING n", returned)

    assert nothing.sizes == []
    assert isinstance(table.data, dict)
    assert (table.data["row_count"], table.data["message"]) == (5, "INSERT 0 5")
    assert (rows.sizes, rows.first) == ([2, 2, 1], {"n": 1})
    assert isinstance(queried.data, dict)
    assert isinstance(queried.data["command_0"], dict)
    assert queried.data["command_0"]["rows"] == [{"all": 5}]
    assert returned.sizes == [5]
    assert isinstance(updated.data, dict)
    assert updated.data["row_count"] == 5


async def test_an_error_in_the_middle_is_the_outcome_after_the_chunks_before_it(tool: PostgresTool) -> None:
    sink = Counting(10)
    outcome = await run(tool, "SELECT 1 / (35 - n) AS x FROM generate_series(1, 100) n", sink)

    assert outcome.error is not None
    assert outcome.error.code == "PG_22012"
    assert sink.sizes == [10, 10, 10]
