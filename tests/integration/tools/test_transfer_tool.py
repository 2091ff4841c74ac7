"""transfer steps between real servers: every way there is, all rows or none, and never many at once."""

import asyncio
import json
import os
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from noetl_core.canonical import JsonValue
from noetl_servicekit.env import Address
from noetl_servicekit.http_server import serve_http
from noetl_testkit.backends import PostgresBackend, fresh_database
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_testkit.until import until
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.duckdb import DuckdbTool
from noetl_worker.tools.duckdb_sessions import DuckdbLimits, DuckdbSessions
from noetl_worker.tools.http_clients import HttpClients, HttpLimits
from noetl_worker.tools.postgres_pools import PostgresPools
from noetl_worker.tools.script_source import ScriptLimits, ScriptSources
from noetl_worker.tools.transfer import TransferTool
from noetl_worker.tools.transfer_sources import TransferAccess
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

POSTGRES: dict[str, JsonValue] = {"type": "postgres", "auth": "db"}
EVERY_TYPE = r"""
    CREATE TABLE {name} (
        i int8, n numeric(38, 20), f float8, b bool, t text, d date, ts timestamp, tz timestamptz, tm time, iv interval,
        j jsonb, u uuid, raw bytea, ints int[], texts text[], r int4range, net inet, bits varbit, m mood, p point
    )
"""
ONE_OF_EVERY_TYPE = r"""
    INSERT INTO {name} VALUES (
        9223372036854775807, 12345678901234567.89012345678901234567, 'NaN', true, E'tab\t nl\n \\N " '' é',
        '0044-03-15',
        '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05+02', '03:04:05.5', '1 year 2 days 00:00:03',
        '{{"a": [1, "x", null]}}', '9b2f0f5e-0000-4000-8000-000000000001', '\x00ff5c0a',
        '{{{{1,NULL}},{{3,4}}}}', ARRAY['a,b', '"q"', 'NULL', NULL, '\ back'], '[1,5)', '10.0.0.1/8', b'0101',
        'sad', '(1,2)'
    ), (NULL, NULL, '-Infinity', NULL, '', NULL, NULL, NULL, NULL, NULL, '"text"', NULL, '', '{{}}', NULL,
        'empty', NULL, NULL, NULL, NULL)
"""


@pytest.fixture
def dsn(postgres_server: PostgresBackend) -> Iterator[str]:
    with fresh_database(postgres_server) as dsn:
        yield dsn


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
def credentials(dsn: str) -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("db", "postgres", {"dsn": dsn})
    stored.add("token", "bearer", {"token": "a-token-that-nobody-may-see"})
    return stored


@pytest.fixture
async def access(credentials: InMemoryToolCredentials, tmp_path: Path) -> AsyncIterator[TransferAccess]:
    limits = DuckdbLimits(threads=1, root=tmp_path)
    async with (
        HttpClients(HttpLimits(max_response_bytes=2_000_000)) as clients,
        PostgresPools() as pools,
        DuckdbSessions(limits, environment=os.environ) as sessions,
    ):
        yield TransferAccess(clients=clients, pools=pools, sessions=sessions, credentials=credentials)


@pytest.fixture
def tool(access: TransferAccess) -> TransferTool:
    return TransferTool(access)


async def duckdb(access: TransferAccess, command: str) -> list[dict[str, Any]]:
    scripts = ScriptSources(limits=ScriptLimits(), clients=access.clients, credentials=access.credentials)
    tool = DuckdbTool(access.sessions, credentials=access.credentials, scripts=scripts)
    config: dict[str, JsonValue] = {"command": command, "database": "lake.duckdb"}
    outcome = await tool.run(call(config, kind="duckdb"))
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    rows: Any = outcome.data.get("rows", [])
    return list(rows)


def call(
    config: Mapping[str, JsonValue], *, kind: str = "transfer", timeout_seconds: float = 60.0, **names: object
) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind=kind,
        config=config,
        names=names,
        timeout_seconds=timeout_seconds,
    )


def transfer(source: Mapping[str, JsonValue], target: Mapping[str, JsonValue], **more: JsonValue) -> ToolCall:
    return call({"source": dict(source), "target": dict(target), **more})


async def rows_text(database: asyncpg.Connection, table: str) -> list[str]:
    """Every row as PostgreSQL itself writes it."""
    found = await database.fetch(f"SELECT {table}::text AS row FROM {table} ORDER BY i")  # noqa: S608
    return [row["row"] for row in found]


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


# --- postgres to postgres -----------------------------------------------------------------------------------


async def test_every_value_arrives_exactly_as_it_was(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TYPE mood AS ENUM ('sad')")
    await database.execute(EVERY_TYPE.format(name="here"))
    await database.execute(EVERY_TYPE.format(name="there"))
    await database.execute(ONE_OF_EVERY_TYPE.format(name="here"))

    outcome = await tool.run(transfer({**POSTGRES, "query": "SELECT * FROM here"}, {**POSTGRES, "table": "there"}))

    assert outcome.data == {"rows_transferred": 2, "chunks_processed": 1}
    assert await rows_text(database, "there") == await rows_text(database, "here")


async def test_rows_go_in_chunks_and_where_the_mapping_says(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute(
        "CREATE SCHEMA sales; CREATE TABLE sales.\"Orders\" (id int, total numeric, note text DEFAULT 'new')"
    )
    query = "SELECT n AS number, n * 1.5 AS amount, 'x' AS unused FROM generate_series(1, {{ how_many }}) n"

    config: dict[str, JsonValue] = {
        "source": {**POSTGRES, "query": query},
        "target": {**POSTGRES, "table": 'sales."Orders"', "mapping": {"ID": "number", "total": "amount"}},
        "chunk_size": "{{ 100 }}",
    }
    outcome = await tool.run(call(config, how_many=1050))

    assert outcome.data == {"rows_transferred": 1050, "chunks_processed": 11}
    found = await database.fetchrow('SELECT count(*), sum(id), sum(total), min(note) FROM sales."Orders"')
    assert tuple(found) == (1050, 551_775, 827_662.5, "new")


async def test_append_adds_replace_replaces_and_upsert_overwrites(
    tool: TransferTool, database: asyncpg.Connection
) -> None:
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, kept text); INSERT INTO t VALUES (1, 'old', 'k')"
    )

    async def send(mode: str, rows: str) -> None:
        query = f"SELECT * FROM (VALUES {rows}) AS s (id, v)"  # noqa: S608
        outcome = await tool.run(transfer({**POSTGRES, "query": query}, {**POSTGRES, "table": "t", "mode": mode}))
        assert outcome.error is None, outcome.error

    async def rows() -> list[tuple[object, ...]]:
        return [tuple(row) for row in await database.fetch("SELECT * FROM t ORDER BY id")]

    await send("append", "(2, 'two')")
    assert await rows() == [(1, "old", "k"), (2, "two", None)]
    await send("upsert", "(1, 'first'), (3, 'three'), (1, 'last')")
    assert await rows() == [(1, "last", "k"), (2, "two", None), (3, "three", None)]
    await send("replace", "(9, 'nine')")
    assert await rows() == [(9, "nine", None)]


async def test_upsert_by_a_key_of_the_playbooks_choice(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int, b int, v text, UNIQUE (a, b)); INSERT INTO t VALUES (1, 1, 'old')")
    source = {**POSTGRES, "query": "SELECT 1 AS a, 1 AS b, 'new' AS v"}

    keyed = await tool.run(transfer(source, {**POSTGRES, "table": "t", "mode": "upsert", "key": ["a", "B"]}))
    keyless = await tool.run(transfer(source, {**POSTGRES, "table": "t", "mode": "upsert"}))
    lacking = await tool.run(
        transfer({**POSTGRES, "query": "SELECT 1 AS a"}, {**POSTGRES, "table": "t", "mode": "upsert", "key": "a, b"})
    )

    assert keyed.error is None
    assert await database.fetchval("SELECT v FROM t") == "new"
    assert failure(keyless) == failure(lacking) == (ErrorKind.SCHEMA, "TRANSFER_KEY", False)


async def test_rows_that_are_only_their_key_are_left_alone(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old')")

    outcome = await tool.run(
        transfer(
            {**POSTGRES, "query": "SELECT generate_series(1, 2) AS a"}, {**POSTGRES, "table": "t", "mode": "upsert"}
        )
    )

    assert outcome.data == {"rows_transferred": 2, "chunks_processed": 1}
    assert await database.fetchval("SELECT v FROM t WHERE a = 1") == "old"


async def test_nothing_to_transfer_is_a_success(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    source = {**POSTGRES, "query": "SELECT 1 AS a WHERE false"}

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t", "mode": "replace"}))

    assert outcome.data == {"rows_transferred": 0, "chunks_processed": 0}
    assert await database.fetchval("SELECT count(*) FROM t") == 0


# --- all or nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
async def test_after_a_failure_nothing_was_written(tool: TransferTool, database: asyncpg.Connection, mode: str) -> None:
    await database.execute("CREATE TABLE t (a int PRIMARY KEY CHECK (a < 50)); INSERT INTO t VALUES (0)")
    source = {**POSTGRES, "query": "SELECT generate_series(1, 60) AS a"}

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t", "mode": mode}, chunk_size=10))

    assert failure(outcome) == (ErrorKind.DB_CONSTRAINT, "PG_23514", False)
    assert outcome.pg is not None
    assert [row["a"] for row in await database.fetch("SELECT a FROM t")] == [0]


async def test_a_source_that_fails_half_way_undoes_the_rest(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int)")
    source = {**POSTGRES, "query": "SELECT 100 / (50 - n) AS a FROM generate_series(1, 60) n"}

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t"}, chunk_size=5))

    assert failure(outcome) == (ErrorKind.TRANSFORM, "PG_22012", False)
    assert await database.fetchval("SELECT count(*) FROM t") == 0


async def test_a_timeout_undoes_everything_on_both_sides(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int)")
    query = "SELECT n AS a FROM generate_series(1, 100000) n, LATERAL pg_sleep(0.01 + n * 0)"

    outcome = await tool.run(
        call(
            {"source": {**POSTGRES, "query": query}, "target": {**POSTGRES, "table": "t"}, "chunk_size": 2},
            timeout_seconds=1.0,
        )
    )

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    await until(lambda: quiet(database))
    assert await database.fetchval("SELECT count(*) FROM t") == 0


async def test_a_cancelled_transfer_leaves_nothing_running(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int)")
    source = {**POSTGRES, "query": "SELECT n AS a FROM generate_series(1, 100000) n, LATERAL pg_sleep(0.01 + n * 0)"}
    running = asyncio.create_task(tool.run(transfer(source, {**POSTGRES, "table": "t"}, chunk_size=2)))
    await until(lambda: busy(database))
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: quiet(database))
    assert await database.fetchval("SELECT count(*) FROM t") == 0


async def busy(database: asyncpg.Connection) -> bool:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'noetl-worker' AND state <> 'idle'"
    return bool(await database.fetchval(f"{sql} AND datname = current_database()"))


async def quiet(database: asyncpg.Connection) -> bool:
    return not await busy(database)


async def test_many_rows_are_never_in_memory_together(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE UNLOGGED TABLE t (n int, text text)")
    source = {**POSTGRES, "query": "SELECT n, repeat('x', 1000) AS text FROM generate_series(1, 30000) n"}
    tracemalloc.start()
    try:
        outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t"}, chunk_size=500))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert outcome.data == {"rows_transferred": 30_000, "chunks_processed": 60}
    assert peak < 10_000_000  # of the 30 MB; a chunk has half a megabyte


# --- http ---------------------------------------------------------------------------------------------------


def orders(count: int) -> list[JsonValue]:
    return [{"id": number, "customer": {"name": f"c{number}"}, "tags": ["a", "b"]} for number in range(count)]


async def serve_orders(request: Request) -> Response:
    if request.headers.get("authorization") != "Bearer a-token-that-nobody-may-see":
        return JSONResponse({"message": f"not {request.headers.get('authorization')}"}, status_code=401)
    count = int(request.query_params.get("count", "3"))
    match request.query_params.get("as"):
        case "lines":
            return Response("\n".join(json.dumps(order) for order in orders(count)))
        case "page":
            return JSONResponse({"page": {"orders": orders(count)}})
        case "stream":

            async def pieces() -> AsyncIterator[bytes]:
                yield b"["
                for number in range(count):
                    yield json.dumps({"id": number, "name": "x" * 1000}).encode() + (
                        b"," if number < count - 1 else b"]"
                    )

            return StreamingResponse(pieces())
        case "broken":
            return Response('[{"id": 1}, {')
        case _:
            return JSONResponse(orders(count))


@pytest.fixture
async def api() -> AsyncIterator[str]:
    app = Starlette(routes=[Route("/orders", serve_orders, methods=["GET", "POST"])])
    async with serve_http(app, Address(host="127.0.0.1", port=0)) as address:
        yield f"http://{address}/orders"


MAPPING: dict[str, JsonValue] = {"id": "id", "customer": "customer.name", "tags": "tags"}


@pytest.mark.parametrize(("form", "path"), [("", None), ("lines", None), ("page", "page.orders")])
async def test_rows_of_a_server_go_into_a_table(
    tool: TransferTool, database: asyncpg.Connection, api: str, form: str, path: str | None
) -> None:
    await database.execute("CREATE TABLE t (id int, customer text, tags text[])")
    source: dict[str, JsonValue] = {
        "type": "http",
        "url": f"{api}?count=25&as={form}",
        "auth": "token",
        "data_path": path,
    }

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t", "mapping": MAPPING}, chunk_size=10))

    assert outcome.data == {"rows_transferred": 25, "chunks_processed": 3}
    assert tuple(await database.fetchrow("SELECT * FROM t WHERE id = 24")) == (24, "c24", ["a", "b"])


async def test_a_long_response_is_read_as_it_comes(tool: TransferTool, database: asyncpg.Connection, api: str) -> None:
    await database.execute("CREATE UNLOGGED TABLE t (id int, name text)")
    source: dict[str, JsonValue] = {"type": "http", "url": f"{api}?count=10000&as=stream", "auth": "token"}

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t"}))  # 10 MB, where 2 MB may be held

    assert outcome.data == {"rows_transferred": 10_000, "chunks_processed": 10}


async def test_a_server_that_refuses_is_the_same_error_as_in_an_http_step(
    tool: TransferTool, database: asyncpg.Connection, api: str, credentials: InMemoryToolCredentials
) -> None:
    await database.execute("CREATE TABLE t (id int)")
    credentials.add("wrong", "bearer", {"token": "some-other-long-token"})
    source: dict[str, JsonValue] = {"type": "http", "url": api, "auth": "wrong"}

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t"}))

    assert failure(outcome) == (ErrorKind.AUTH, "HTTP_401", False)
    assert isinstance(outcome.data, dict)
    assert outcome.data["status_code"] == 401
    assert "some-other-long-token" not in json.dumps(outcome.envelope())


async def test_what_is_no_json_is_no_rows(tool: TransferTool, database: asyncpg.Connection, api: str) -> None:
    await database.execute("CREATE TABLE t (id int)")
    source: dict[str, JsonValue] = {"type": "http", "url": f"{api}?as=broken", "auth": "token"}

    outcome = await tool.run(transfer(source, {**POSTGRES, "table": "t"}, chunk_size=1))

    assert failure(outcome) == (ErrorKind.PARSE, "SOURCE_NOT_JSON", False)
    assert await database.fetchval("SELECT count(*) FROM t") == 0


# --- duckdb -------------------------------------------------------------------------------------------------

LAKE: dict[str, JsonValue] = {"type": "duckdb", "database": "lake.duckdb"}


async def test_rows_go_to_duckdb_and_back(
    tool: TransferTool, access: TransferAccess, database: asyncpg.Connection
) -> None:
    columns = (
        "i BIGINT, n DECIMAL(38, 10), f DOUBLE, b BOOLEAN, t TEXT, d DATE, tz TIMESTAMPTZ, j JSON, u UUID, raw BLOB"
    )
    await duckdb(access, f"CREATE TABLE t ({columns}, l INT[])")
    for name in ("here", "there"):
        await database.execute(
            f"CREATE TABLE {name} (i int8, n numeric, f float8, b bool, t text, d date, tz timestamptz,"
            " j jsonb, u uuid, raw bytea, l int[])"
        )
    await database.execute(
        "INSERT INTO here VALUES (9223372036854775807, 1234567890123.0123456789, 1.5, true, 'it''s \"é\"',"
        " '2024-01-02', '2024-01-02 03:04:05.25+00', '{\"a\": [1]}', '9b2f0f5e-0000-4000-8000-000000000001',"
        " '\\x00ff', '{1,2}'),"
        " (NULL, NULL, 'NaN', NULL, '', NULL, NULL, NULL, NULL, NULL, '{}')"
    )

    there = await tool.run(transfer({**POSTGRES, "query": "SELECT * FROM here ORDER BY i"}, {**LAKE, "table": "t"}))
    back = await tool.run(transfer({**LAKE, "query": "FROM t ORDER BY i"}, {**POSTGRES, "table": "there"}))

    assert there.data == back.data == {"rows_transferred": 2, "chunks_processed": 1}
    assert await rows_text(database, "there") == await rows_text(database, "here")


async def test_the_modes_of_duckdb(tool: TransferTool, access: TransferAccess) -> None:
    await duckdb(access, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT, kept TEXT); INSERT INTO t VALUES (1, 'old', 'k')")

    async def send(mode: str, rows: str) -> list[dict[str, Any]]:
        query = f"SELECT * FROM (VALUES {rows}) AS s (id, v)"  # noqa: S608
        outcome = await tool.run(transfer({**POSTGRES, "query": query}, {**LAKE, "table": "T", "mode": mode}))
        assert outcome.error is None, outcome.error
        return await duckdb(access, "SELECT id, v, kept FROM t ORDER BY id")

    appended = await send("append", "(2, 'two')")
    assert [row["id"] for row in appended] == [1, 2]
    upserted = await send("upsert", "(1, 'first'), (3, 'three'), (1, 'last')")
    assert [(row["id"], row["v"], row["kept"]) for row in upserted] == [
        (1, "last", "k"),
        (2, "two", None),
        (3, "three", None),
    ]
    assert [row["id"] for row in await send("replace", "(9, 'nine')")] == [9]


async def test_after_a_failure_duckdb_has_nothing_of_it(tool: TransferTool, access: TransferAccess) -> None:
    await duckdb(access, "CREATE TABLE t (a INT CHECK (a < 50)); INSERT INTO t VALUES (0)")
    source = {**POSTGRES, "query": "SELECT generate_series(1, 60) AS a"}

    outcome = await tool.run(transfer(source, {**LAKE, "table": "t", "mode": "replace"}, chunk_size=10))

    assert failure(outcome) == (ErrorKind.DB_CONSTRAINT, "DUCKDB_ConstraintException", False)
    assert await duckdb(access, "FROM t") == [{"a": 0}]


async def test_many_rows_come_from_duckdb_in_chunks(
    tool: TransferTool, access: TransferAccess, database: asyncpg.Connection
) -> None:
    await database.execute("CREATE TABLE t (n int)")

    outcome = await tool.run(
        transfer({**LAKE, "query": "SELECT range AS n FROM range(2500)"}, {**POSTGRES, "table": "t"}, chunk_size=1000)
    )

    assert outcome.data == {"rows_transferred": 2500, "chunks_processed": 3}


# --- configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({}, {}),
        ({"type": "kafka"}, {**POSTGRES, "table": "t"}),
        ({**POSTGRES, "query": "SELECT 1 AS a"}, {"type": "http", "table": "t"}),
        ({**POSTGRES, "query": "SELECT 1 AS a"}, {**POSTGRES}),
        ({**POSTGRES, "query": "SELECT 1 AS a"}, {**POSTGRES, "table": "t", "mode": "merge"}),
        ({**POSTGRES, "query": "SELECT 1 AS a"}, {**POSTGRES, "table": "t", "mapping": {"a": "nope"}}),
        ({**POSTGRES, "query": "SELECT 1 AS a"}, {**POSTGRES, "table": "t", "mapping": {"a": 1}}),
        ({**POSTGRES, "query": "SELECT 1; SELECT 2"}, {**POSTGRES, "table": "t"}),
        ({**LAKE, "query": "SELECT 1 AS a"}, {**LAKE, "table": "t"}),
        ({**LAKE, "query": "CREATE TABLE x (a INT)"}, {**POSTGRES, "table": "t"}),
    ],
)
async def test_what_cannot_be_transferred_is_refused(
    tool: TransferTool,
    database: asyncpg.Connection,
    source: dict[str, JsonValue],
    target: dict[str, JsonValue],
) -> None:
    await database.execute("CREATE TABLE t (a int)")

    assert failure(await tool.run(transfer(source, target))) == (ErrorKind.SCHEMA, "TOOL_CONFIG", False)


async def test_tables_and_columns_must_be_there(tool: TransferTool, database: asyncpg.Connection) -> None:
    await database.execute("CREATE TABLE t (a int)")
    source = {**POSTGRES, "query": "SELECT 1 AS b"}

    no_table = await tool.run(transfer(source, {**POSTGRES, "table": "nowhere"}))
    no_column = await tool.run(transfer(source, {**POSTGRES, "table": "t"}))

    assert failure(no_table) == (ErrorKind.SCHEMA, "PG_42P01", False)
    assert failure(no_column) == (ErrorKind.SCHEMA, "TRANSFER_COLUMN", False)


async def test_both_ends_need_their_credentials(tool: TransferTool) -> None:
    source = {**POSTGRES, "query": "SELECT 1 AS a"}

    no_source = await tool.run(transfer({**source, "auth": "nobody"}, {**POSTGRES, "table": "t"}))
    no_target = await tool.run(transfer(source, {"type": "postgres", "table": "t"}))

    assert failure(no_source) == (ErrorKind.AUTH, "CREDENTIAL_NOT_FOUND", False)
    assert failure(no_target) == (ErrorKind.AUTH, "AUTH_MISSING", False)
