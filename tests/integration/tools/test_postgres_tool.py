"""postgres steps against a real server: results, errors, pools, and that no query outlives its call."""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
from noetl_core.canonical import JsonValue, encode
from noetl_core.ports.credentials import Credential
from noetl_testkit.backends import PostgresBackend, fresh_database
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_testkit.until import until
from noetl_worker.application.open_frame import open_frame
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.http_clients import HttpClients
from noetl_worker.tools.postgres import PostgresTool
from noetl_worker.tools.postgres_pools import PostgresLimits, PostgresPools
from noetl_worker.tools.postgres_sessions import SessionSettings
from noetl_worker.tools.postgres_target import postgres_target
from noetl_worker.tools.python_pool import Owner
from noetl_worker.tools.script_source import ScriptLimits, ScriptSources
from noetl_worker.tools.shared_resources import SharingLimits

LIMITS = PostgresLimits(max_connections_per_pool=3, wait_seconds=5.0, max_result_bytes=2_000_000)


@pytest.fixture
def dsn(postgres_server: PostgresBackend) -> Iterator[str]:
    with fresh_database(postgres_server) as dsn:
        yield dsn


@pytest.fixture
def credentials(dsn: str) -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("db", "postgres", {"dsn": dsn})
    stored.add("db", "postgres", {"dsn": dsn}, tenant_id="else")
    return stored


@pytest.fixture
async def pools() -> AsyncIterator[PostgresPools]:
    async with PostgresPools(LIMITS) as pools:
        yield pools


@pytest.fixture
async def tool(pools: PostgresPools, credentials: InMemoryToolCredentials) -> AsyncIterator[PostgresTool]:
    async with tool_on(pools, credentials) as tool:
        yield tool


class tool_on:  # noqa: N801 - reads as a function
    """A tool with pools of one's own."""

    def __init__(self, pools: PostgresPools, credentials: InMemoryToolCredentials) -> None:
        self._clients = HttpClients()
        scripts = ScriptSources(limits=ScriptLimits(), clients=self._clients, credentials=credentials)
        self._tool = PostgresTool(pools, credentials=credentials, scripts=scripts)

    async def __aenter__(self) -> PostgresTool:
        await self._clients.__aenter__()
        return self._tool

    async def __aexit__(self, *_: object) -> None:
        await self._clients.__aexit__(None, None, None)


def call(
    command: JsonValue = None,
    *,
    auth: JsonValue = "db",
    timeout_seconds: float | None = 60.0,
    tenant_id: str = "default",
    names: Mapping[str, object] | None = None,
    inputs: Mapping[str, JsonValue] | None = None,
    config: Mapping[str, JsonValue] | None = None,
    task: str = "",
) -> ToolCall:
    return ToolCall(
        tenant_id=tenant_id,
        organization_id="default",
        execution_id=1,
        step="s",
        task=task,
        kind="postgres",
        config={"command": command} if config is None else config,
        auth=auth,
        names=names or {},
        input=inputs or {},
        timeout_seconds=timeout_seconds,
    )


def data(outcome: Outcome) -> dict[str, Any]:
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    return outcome.data


def kept(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome.data, dict)
    return outcome.data


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


# --- results ------------------------------------------------------------------------------------------------


async def test_the_rows_of_a_statement_are_the_result(tool: PostgresTool) -> None:
    outcome = await tool.run(call("SELECT {{ n }} AS a, '{{ who }}' AS b;", names={"n": 7}, inputs={"who": "ada"}))

    statement = {"status": "success", "rows": [{"a": 7, "b": "ada"}], "row_count": 1, "columns": ["a", "b"]}
    assert data(outcome) == {**statement, "statement_count": 1, "command_0": statement}


async def test_a_statement_without_rows_says_how_many_it_changed(tool: PostgresTool) -> None:
    await tool.run(call("CREATE TABLE t (a int)"))

    outcome = await tool.run(call("INSERT INTO t VALUES (1), (2), (3)"))

    statement = {"status": "success", "row_count": 3, "message": "INSERT 0 3"}
    assert data(outcome) == {**statement, "command_0": statement}


async def test_no_rows_still_have_columns(tool: PostgresTool) -> None:
    assert data(await tool.run(call("SELECT 1 AS a WHERE false")))["columns"] == ["a"]


async def test_values_are_json(tool: PostgresTool) -> None:
    outcome = await tool.run(
        call(
            r"""
            SELECT 1.50::numeric AS d, 'NaN'::numeric AS nan, '-inf'::float8 AS inf, DATE '2024-01-02' AS day,
                   TIMESTAMP '2024-01-02 03:04:05' AS at, TIMESTAMPTZ '2024-01-02 03:04:05+01' AS zoned,
                   TIME '03:04:05' AS t, INTERVAL '1 month 2 days' AS i, '{"a": [1, null]}'::jsonb AS j,
                   '"text"'::json AS js, 'ab'::bytea AS raw, '9b2f0f5e-0000-4000-8000-000000000001'::uuid AS u,
                   ARRAY[[1, 2], [3, NULL]] AS m, int4range(1, 5) AS r, '10.0.0.1/8'::inet AS net, b'101' AS bits,
                   9007199254740993::int8 AS big, NULL AS nothing, true AS yes, 'r'::"char" AS c,
                   point(1, 2) AS p, 'x'::varchar(5) AS v
            """
        )
    )

    assert data(outcome)["rows"] == [
        {
            "d": 1.5,
            "nan": "NaN",
            "inf": "-Infinity",
            "day": "2024-01-02",
            "at": "2024-01-02T03:04:05",
            "zoned": "2024-01-02T02:04:05+00:00",
            "t": "03:04:05",
            "i": "1 mon 2 days",
            "j": {"a": [1, None]},
            "js": "text",
            "raw": base64.b64encode(b"ab").decode(),
            "u": "9b2f0f5e-0000-4000-8000-000000000001",
            "m": [[1, 2], [3, None]],
            "r": "[1,5)",
            "net": "10.0.0.1/8",
            "bits": "101",
            "big": "9007199254740993",
            "nothing": None,
            "yes": True,
            "c": "r",
            "p": "(1,2)",
            "v": "x",
        }
    ]
    encode(outcome.data)  # as it will be stored


async def test_types_of_the_users_own_are_told_too(tool: PostgresTool) -> None:
    outcome = await tool.run(
        call(
            "CREATE TYPE mood AS ENUM ('glad'); CREATE TYPE pair AS (a int, b text); CREATE DOMAIN age AS int;"
            " SELECT 'glad'::mood AS m, ROW(1, 'x')::pair AS p, 5::age AS n, ARRAY['glad'::mood] AS ms"
        )
    )

    assert data(outcome)["rows"] == [{"m": "glad", "p": {"a": 1, "b": "x"}, "n": 5, "ms": ["glad"]}]


async def test_many_rows_come_in_batches_without_a_cap(tool: PostgresTool) -> None:
    outcome = await tool.run(call("SELECT n FROM generate_series(1, 25000) n"))

    assert [row["n"] for row in data(outcome)["rows"]] == list(range(1, 25_001))


async def test_a_result_that_no_worker_could_hold_is_refused(tool: PostgresTool) -> None:
    outcome = await tool.run(call("SELECT repeat('x', 10000) AS text FROM generate_series(1, 1000); SELECT 1 AS a"))

    assert failure(outcome) == (ErrorKind.STORAGE_QUOTA, "RESULT_TOO_LARGE", False)
    assert kept(outcome)["command_1"]["rows"] == [{"a": 1}]


# --- statements ---------------------------------------------------------------------------------------------


async def test_each_statement_counts_at_once_and_one_that_fails_stops_no_other(tool: PostgresTool) -> None:
    outcome = await tool.run(
        call(
            "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1); INSERT INTO t VALUES (1);"
            " INSERT INTO t VALUES (2) RETURNING a; SELECT nothing FROM t"
        )
    )

    assert failure(outcome) == (ErrorKind.DB_CONSTRAINT, "PG_23505", False)
    assert outcome.error is not None
    assert "2 of 5 statements failed" in outcome.error.message
    ends = [kept(outcome)[f"command_{index}"] for index in range(5)]
    assert [end["status"] for end in ends] == ["success", "success", "error", "success", "error"]
    assert ends[2]["code"] == "PG_23505"
    assert ends[3]["rows"] == [{"a": 2}]
    assert outcome.pg is not None
    assert (outcome.pg["sqlstate"], outcome.pg["constraint"], outcome.pg["table"]) == ("23505", "t_pkey", "t")
    assert data(await tool.run(call("SELECT a FROM t ORDER BY a")))["rows"] == [{"a": 1}, {"a": 2}]


async def test_semicolons_in_quotes_and_bodies_end_nothing(tool: PostgresTool) -> None:
    outcome = await tool.run(
        call(
            "CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $body$ BEGIN RETURN 'a;b'; END; $body$; -- ;\n"
            " SELECT f() AS f, ';' AS s /* ; */"
        )
    )

    assert data(outcome)["rows"] == [{"f": "a;b", "s": ";"}]
    assert data(outcome)["statement_count"] == 2


async def test_procedures_may_commit_and_maintenance_runs(tool: PostgresTool) -> None:
    outcome = await tool.run(
        call(
            "CREATE TABLE t (a int); CREATE PROCEDURE p(INOUT n int) LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO t VALUES (n); COMMIT; n := n + 1; END $$; CALL p(1); VACUUM t; SHOW timezone;"
            " EXPLAIN SELECT 1; CREATE INDEX CONCURRENTLY i ON t (a)"
        )
    )

    assert data(outcome)["command_2"]["rows"] == [{"n": 2}]
    assert data(outcome)["command_3"]["message"] == "VACUUM"


async def test_a_transaction_of_the_users_own_works(tool: PostgresTool) -> None:
    done = await tool.run(
        call("CREATE TABLE t (a int); BEGIN; INSERT INTO t VALUES (1); SELECT a FROM t; ROLLBACK; SELECT * FROM t")
    )
    left_open = await tool.run(call("BEGIN; INSERT INTO t VALUES (1)"))

    assert data(done)["command_3"]["rows"] == [{"a": 1}]
    assert data(done)["rows"] == []
    assert failure(left_open) == (ErrorKind.CLIENT_ERROR, "PG_OPEN_TRANSACTION", False)
    assert data(await tool.run(call("SELECT * FROM t")))["rows"] == []


async def test_what_one_call_sets_the_next_does_not_see(tool: PostgresTool) -> None:
    await tool.run(call("SET search_path = nowhere; CREATE TEMP TABLE IF NOT EXISTS mine (a int); LISTEN x"))

    assert data(await tool.run(call("SHOW search_path")))["rows"] == [{"search_path": '"$user", public'}]


async def test_no_role_temporary_table_or_prepared_statement_outlives_its_call(
    single: PostgresTool, credentials: InMemoryToolCredentials, dsn: str
) -> None:
    await single.run(call("DROP ROLE IF EXISTS noetl_another; CREATE ROLE noetl_another; CREATE TABLE orders (a int)"))
    try:
        left = "CREATE TEMP TABLE orders (a int); PREPARE asked AS SELECT 1; SET ROLE noetl_another"
        assert (await single.run(call(left))).error is None
        seen = (
            "SELECT current_user = session_user AS is_own, (SELECT count(*) FROM pg_prepared_statements WHERE from_sql)"
        )
        (row,) = rows_of(await single.run(call(f"{seen} AS prepared")))
        assert row == {"is_own": True, "prepared": 0}

        assert (await single.run(call("INSERT INTO orders VALUES (1)"))).error is None
        other = await asyncpg.connect(dsn)
        try:
            assert await other.fetchval("SELECT count(*) FROM orders") == 1, "it went to where everybody finds it"
        finally:
            await other.close()
        left = "SET SESSION AUTHORIZATION noetl_another"
        assert (await single.run(call(left))).error is None
        (row,) = rows_of(await single.run(call("SELECT current_setting('is_superuser') AS may_all")))
        assert row == {"may_all": "on"}

        credentials.add("as another", "postgres", {"dsn": f"{dsn}?role=noetl_another"})
        for _ in range(2):
            (row,) = rows_of(await single.run(call("SELECT current_user AS who", auth="as another")))
            assert row == {"who": "noetl_another"}, "as the address says, also after a reset"
    finally:
        await single.run(call("DROP ROLE noetl_another"))


@pytest.mark.parametrize(
    "config",
    [
        {"query": "SELECT 5 AS n"},
        {"commands": ["SELECT 4 AS n", "SELECT 5 AS n"]},
        {"commands": "SELECT 4 AS n; SELECT 5 AS n"},
        {"command": "{{ statements }}"},
        {"command_b64": base64.b64encode(b"SELECT {{ 5 }} AS n").decode()},
        {"query_b64": base64.b64encode(b"SELECT 5 AS n").decode()},
        {"script": {"uri": "SELECT {{ 5 }} AS n", "source": {"type": "inline"}}},
    ],
)
async def test_sql_can_stand_in_many_places(tool: PostgresTool, config: dict[str, JsonValue]) -> None:
    names = {"statements": ["SELECT 4 AS n", "SELECT 5 AS n"]}

    assert data(await tool.run(call(config=config, names=names)))["rows"] == [{"n": 5}]


@pytest.mark.parametrize("config", [{}, {"command": " ; -- nothing\n"}, {"commands": []}, {"query": ""}])
async def test_without_sql_there_is_an_error(tool: PostgresTool, config: dict[str, JsonValue]) -> None:
    outcome = await tool.run(call(config=config))

    assert failure(outcome) == (ErrorKind.SCHEMA, "NO_SQL", False)
    assert outcome.error is not None
    assert outcome.error.message == "No SQL command provided"


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "kind", "code", "retryable"),
    [
        ("SELEC 1", ErrorKind.PARSE, "PG_42601", False),
        ("SELECT * FROM nowhere", ErrorKind.SCHEMA, "PG_42P01", False),
        ("SELECT 1 / 0", ErrorKind.TRANSFORM, "PG_22012", False),
        ("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$", ErrorKind.UNKNOWN, "PG_P0001", False),
        ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", ErrorKind.DB_DEADLOCK, "PG_40001", True),
        ("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", ErrorKind.DB_DEADLOCK, "PG_40P01", True),
        ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", ErrorKind.DB_CONNECTION, "PG_53300", True),
        ("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$", ErrorKind.STORAGE_QUOTA, "PG_53100", False),
        ("DO $$ BEGIN RAISE SQLSTATE '42501'; END $$", ErrorKind.AUTH, "PG_42501", False),
        ("SET statement_timeout = 50; SELECT pg_sleep(60)", ErrorKind.DB_TIMEOUT, "PG_57014", True),
        ("COPY t FROM STDIN", ErrorKind.SCHEMA, "TOOL_CONFIG", False),
        ("SELECT DATE '4000-01-01 BC'", ErrorKind.SCHEMA, "PG_DRIVER", False),
    ],
)
async def test_errors_have_kinds(tool: PostgresTool, sql: str, kind: ErrorKind, code: str, *, retryable: bool) -> None:
    assert failure(await tool.run(call(sql))) == (kind, code, retryable)


async def test_a_real_deadlock_is_one(tool: PostgresTool) -> None:
    await tool.run(call("CREATE TABLE t (a int PRIMARY KEY, b int); INSERT INTO t VALUES (1, 0), (2, 0)"))

    def crossing(first: int, second: int) -> ToolCall:
        statements = (
            "BEGIN; UPDATE t SET b = 1 WHERE a = {{ first }}; SELECT pg_sleep(1);"
            " UPDATE t SET b = 1 WHERE a = {{ second }}; COMMIT"
        )
        return call(statements, names={"first": first, "second": second})

    outcomes = await asyncio.gather(tool.run(crossing(1, 2)), tool.run(crossing(2, 1)))

    failed = [outcome for outcome in outcomes if outcome.error is not None]
    assert len(failed) == 1
    assert failure(failed[0]) == (ErrorKind.DB_DEADLOCK, "PG_40P01", True)


async def test_a_timeout_ends_the_query_on_the_server(tool: PostgresTool, dsn: str) -> None:
    outcome = await tool.run(call("SELECT 1 AS a; SELECT pg_sleep(600)", timeout_seconds=0.5))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    assert kept(outcome)["command_0"]["rows"] == [{"a": 1}]
    await until(lambda: nobody_sleeps(dsn))


async def test_a_cancelled_call_cancels_its_query_and_gives_its_connection_back(tool: PostgresTool, dsn: str) -> None:
    running = [asyncio.create_task(tool.run(call("SELECT pg_sleep(600)"))) for _ in range(3)]
    await until(lambda: sleepers(dsn, 3))
    for task in running:
        task.cancel()

    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*running, return_exceptions=True)
    )
    await until(lambda: nobody_sleeps(dsn))
    assert data(await tool.run(call("SELECT 1 AS a")))["rows"] == [{"a": 1}]


async def test_a_connection_that_breaks_ends_the_call_and_not_the_pool(tool: PostgresTool, dsn: str) -> None:
    outcome = await tool.run(call("SELECT 1 AS a; SELECT pg_terminate_backend(pg_backend_pid()); SELECT 2 AS never"))

    assert failure(outcome)[0] is ErrorKind.DB_CONNECTION
    assert failure(outcome)[2]
    assert "command_2" not in kept(outcome)
    assert data(await tool.run(call("SELECT 1 AS a")))["rows"] == [{"a": 1}]


# --- connections and credentials ----------------------------------------------------------------------------


async def test_a_server_that_is_not_there_may_be_later(
    tool: PostgresTool, credentials: InMemoryToolCredentials
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        credentials.add("gone", "postgres", {"host": "127.0.0.1", "port": taken.getsockname()[1], "user": "u"})
        refused = await tool.run(call("SELECT 1", auth="gone"))
    credentials.add("unknown", "postgres", {"host": "no-such-host.invalid", "user": "u"})
    unknown = await tool.run(call("SELECT 1", auth="unknown"))

    assert failure(refused) == (ErrorKind.DB_CONNECTION, "CONN_REFUSED", True)
    assert failure(unknown) == (ErrorKind.DB_CONNECTION, "DNS_ERROR", True)


async def test_a_database_that_does_not_exist_is_not_found(
    tool: PostgresTool, credentials: InMemoryToolCredentials, dsn: str
) -> None:
    credentials.add("wrong", "postgres", {"dsn": dsn, "database": "no_such_database"})

    assert failure(await tool.run(call("SELECT 1", auth="wrong"))) == (ErrorKind.NOT_FOUND, "PG_3D000", False)


@pytest.mark.parametrize(
    ("auth", "code"),
    [(None, "AUTH_MISSING"), ("nobody", "CREDENTIAL_NOT_FOUND"), ({"a": "db", "b": "db"}, "AUTH_INVALID")],
)
async def test_without_its_credential_nothing_runs(tool: PostgresTool, auth: JsonValue, code: str) -> None:
    assert failure(await tool.run(call("SELECT 1", auth=auth))) == (ErrorKind.AUTH, code, False)


async def test_no_password_is_ever_said(tool: PostgresTool, credentials: InMemoryToolCredentials, dsn: str) -> None:
    parts = urlsplit(dsn)
    secret = "corr'ect horse"
    credentials.add(
        "secret",
        "postgres",
        {"host": parts.hostname, "port": parts.port, "user": "nobody_here", "password": secret, "database": "x"},
    )

    repeating = "SELECT '{{ said }}'::int"
    inline: JsonValue = {"type": "postgres", "dsn": dsn, "note": secret}
    outcomes = [
        await tool.run(call("SELECT 1", auth="secret")),
        await tool.run(call(repeating, auth=inline, names={"said": secret.replace("'", "''")})),
    ]

    for outcome in outcomes:
        assert outcome.error is not None
        told = json.dumps(outcome.envelope())
        assert secret not in told
        assert quote(secret) not in told


async def test_the_workers_own_environment_gives_nobody_a_password(
    tool: PostgresTool, credentials: InMemoryToolCredentials, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(dsn)
    monkeypatch.setenv("PGHOST", str(parts.hostname))
    monkeypatch.setenv("PGPASSWORD", "of-the-worker")
    monkeypatch.setenv("PGUSER", str(parts.username))
    credentials.add("nothing", "postgres", {"database": parts.path.removeprefix("/")})

    assert failure(await tool.run(call("SELECT 1", auth="nothing"))) == (ErrorKind.AUTH, "CREDENTIAL_UNFIT", False)


async def test_calls_share_a_pool_that_is_bounded(tool: PostgresTool, pools: PostgresPools, dsn: str) -> None:
    outcomes = await asyncio.gather(
        *(tool.run(call("SELECT pg_backend_pid() AS pid, pg_sleep(0.05)")) for _ in range(12))
    )

    pids = {data(outcome)["rows"][0]["pid"] for outcome in outcomes}
    assert 1 <= len(pids) <= LIMITS.max_connections_per_pool
    assert pools.open_count == 1
    assert await connections(dsn) <= LIMITS.max_connections_per_pool


async def test_calls_after_each_other_have_the_same_connection(tool: PostgresTool, dsn: str) -> None:
    pids = [data(await tool.run(call("SELECT pg_backend_pid() AS pid")))["rows"][0]["pid"] for _ in range(3)]

    assert len(set(pids)) == 1
    assert await connections(dsn) == 1


async def test_a_call_that_is_cancelled_while_it_gives_its_connection_back_leaves_nothing_of_it(
    tool: PostgresTool, pools: PostgresPools, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, reset = asyncio.Event(), SessionSettings.reset

    async def slow_at_first(settings: SessionSettings, connection: object, *, timeout_seconds: float) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(600)
        await reset(settings, connection, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(SessionSettings, "reset", slow_at_first)
    running = asyncio.create_task(tool.run(call("SELECT pg_advisory_lock(1)")))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: no_connections(dsn))

    locks = await tool.run(call("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory'"))
    assert data(locks)["rows"] == [{"n": 0}]
    everybody = await asyncio.gather(*(tool.run(call("SELECT pg_sleep(0.02)")) for _ in range(12)))
    assert all(outcome.error is None for outcome in everybody)


async def test_a_step_may_want_a_smaller_pool(tool: PostgresTool) -> None:
    config: dict[str, JsonValue] = {
        "command": "SELECT pg_backend_pid() AS pid, pg_sleep(0.02)",
        "pool": {"max_size": 1},
    }

    outcomes = await asyncio.gather(*(tool.run(call(config=config)) for _ in range(4)))

    assert len({data(outcome)["rows"][0]["pid"] for outcome in outcomes}) == 1


async def test_organizations_share_no_connection(tool: PostgresTool, pools: PostgresPools) -> None:
    first = data(await tool.run(call("SELECT pg_backend_pid() AS pid")))["rows"]
    second = data(await tool.run(call("SELECT pg_backend_pid() AS pid", tenant_id="else")))["rows"]

    assert first != second
    assert pools.open_count == 2


async def test_connections_that_nobody_uses_are_closed(credentials: InMemoryToolCredentials, dsn: str) -> None:
    limits = PostgresLimits(sharing=SharingLimits(idle_seconds=0.0))
    async with PostgresPools(limits) as pools, tool_on(pools, credentials) as tool:
        await tool.run(call("SELECT 1"))
        assert await connections(dsn) == 1
        await pools.upkeep.once()
        assert pools.open_count == 0
        await until(lambda: no_connections(dsn))


async def test_leaving_closes_every_connection_also_those_with_a_query(
    credentials: InMemoryToolCredentials, dsn: str
) -> None:
    pools = PostgresPools()
    async with tool_on(pools, credentials) as tool:
        async with pools:
            running = asyncio.create_task(tool.run(call("SELECT pg_sleep(600)")))
            await until(lambda: sleepers(dsn, 1))
        outcome = await running
        afterwards = await tool.run(call("SELECT 1"))

    assert failure(outcome)[0] is ErrorKind.DB_CONNECTION
    assert failure(afterwards) == (ErrorKind.DB_CONNECTION, "PG_POOL_FULL", True)
    await until(lambda: no_connections(dsn))


async def test_too_many_pools_are_a_retryable_error(credentials: InMemoryToolCredentials, dsn: str) -> None:
    limits = PostgresLimits(sharing=SharingLimits(max_open=1))
    async with PostgresPools(limits) as pools, tool_on(pools, credentials) as tool:
        running = asyncio.create_task(tool.run(call("SELECT pg_sleep(600)")))
        await until(lambda: sleepers(dsn, 1))
        outcome = await tool.run(call("SELECT 1", tenant_id="else"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert failure(outcome) == (ErrorKind.DB_CONNECTION, "PG_POOL_FULL", True)


async def watched(dsn: str, condition: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity"  # noqa: S608 - conditions of this file
            f" WHERE application_name = 'noetl-worker' AND datname = current_database() AND {condition}"
        )
        return found
    finally:
        await connection.close()


async def connections(dsn: str) -> int:
    return await watched(dsn, "true")


async def no_connections(dsn: str) -> bool:
    return await connections(dsn) == 0


async def sleepers(dsn: str, count: int) -> bool:
    return await watched(dsn, "state = 'active' AND query LIKE '%pg_sleep%'") == count


async def nobody_sleeps(dsn: str) -> bool:
    return await sleepers(dsn, 0)


# --- sessions -----------------------------------------------------------------------------------------------


async def test_each_call_finds_its_own_limits_whatever_the_call_before_it_has_set(tool: PostgresTool) -> None:
    shown = "SELECT current_setting('statement_timeout') AS t, current_setting('search_path') AS p"

    async def limits(sql: str, seconds: float) -> Any:
        outcome = await tool.run(call(sql, timeout_seconds=seconds))
        assert outcome.error is None
        return outcome.result()

    first = await limits(f"SET search_path = nowhere; SELECT pg_advisory_lock(7); {shown}", 10.0)
    assert first["rows"] == [{"t": "15s", "p": "nowhere"}]
    same = await limits(f"SET statement_timeout = 0; {shown}", 10.0)
    assert same["rows"][0]["t"] == "0"
    assert (await limits(shown, 10.0))["rows"] == [{"t": "15s", "p": '"$user", public'}]
    assert (await limits(shown, 20.0))["rows"][0]["t"] == "25s"
    assert (await limits("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory'", 20.0))["rows"] == [{"n": 0}]


async def test_a_call_that_is_like_the_one_before_it_sets_nothing_anew(
    pools: PostgresPools, tool: PostgresTool, dsn: str
) -> None:
    """Two requests: what changes rows is not described first, and what gives back sets for the next call."""
    await tool.run(call("CREATE TABLE t (a int)"))
    await tool.run(call("INSERT INTO t VALUES (1)"))
    target = postgres_target(Credential(name="db", type="postgres", data={"dsn": dsn}))
    owner = Owner(tenant_id="default", organization_id="default")
    asked: list[str] = []
    async with pools.connection(pools.key(owner, target), timeout_seconds=60.0) as connection:
        connection.add_query_logger(lambda record: asked.append(record.query))
    await asyncio.sleep(0)  # who listens is told a turn later
    assert len(asked) == 1, "given back"
    await tool.run(call("INSERT INTO t VALUES (2)"))
    await asyncio.sleep(0)

    assert len(asked) == 3
    assert asked[1] == "INSERT INTO t VALUES (2)"
    assert asked[2].startswith("SELECT pg_advisory_unlock_all()")
    assert "SET statement_timeout = 65000" in asked[2]


# --- rows of frames ---------------------------------------------------------------------------------------------

MARKING = """
CREATE TABLE t (a int);
CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('noetl.mark', NEW.a::text, false);
  PERFORM pg_advisory_lock(NEW.a);
  EXECUTE 'LISTEN news';
  RETURN NEW;
END $$;
CREATE TRIGGER marking BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION mark();
"""
MARKS = (
    "SELECT current_setting('noetl.mark', true) AS mark, (SELECT count(*) FROM pg_listening_channels()) AS heard,"
    " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks"
)


@pytest.fixture
async def single(credentials: InMemoryToolCredentials) -> AsyncIterator[PostgresTool]:
    """A tool with one connection, so that whoever comes gets the one that was used before."""
    async with PostgresPools(PostgresLimits(max_connections_per_pool=1)) as pools, tool_on(pools, credentials) as tool:
        assert (await tool.run(call(MARKING))).error is None
        yield tool


def clean(outcome: Outcome) -> bool:
    (row,) = rows_of(outcome)
    return (row["mark"] or "", row["heard"], row["locks"]) == ("", 0, 0)


def rows_of(outcome: Outcome) -> Any:
    assert outcome.error is None
    assert isinstance(outcome.data, dict)
    return outcome.data["rows"]


async def locks(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return found
    finally:
        await connection.close()


async def no_locks(dsn: str) -> bool:
    return await locks(dsn) == 0


async def test_rows_of_one_task_share_a_session_and_nobody_else_sees_what_a_trigger_did_to_it(
    single: PostgresTool,
) -> None:
    with open_frame():
        for statement in ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)"):
            assert (await single.run(call(statement, task="save"))).error is None
        (own,) = rows_of(await single.run(call(MARKS, task="save")))
        assert (own["mark"], own["heard"], own["locks"]) == ("2", 1, 2), "nothing was reset in between"
        assert clean(await single.run(call(MARKS, task="save"))), "a query is given back as always"

        await single.run(call("INSERT INTO t VALUES (3)", task="save"))
        assert clean(await single.run(call(MARKS, task="other")))

        await single.run(call("INSERT INTO t VALUES (4)", task="save"))
    with open_frame():
        assert clean(await single.run(call(MARKS, task="save")))
    assert clean(await single.run(call(MARKS, task="save")))


async def test_what_a_trigger_has_locked_is_free_when_the_frame_ends_and_when_its_task_rests(
    single: PostgresTool, dsn: str
) -> None:
    with open_frame():
        await single.run(call("INSERT INTO t VALUES (1)", task="save"))
        assert await locks(dsn) == 1
        await until(lambda: no_locks(dsn))
        await single.run(call("INSERT INTO t VALUES (2)", task="save"))
        assert await locks(dsn) == 1
    await until(lambda: no_locks(dsn))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO u SELECT 1 WHERE set_config('noetl.mark', 'x', false) = 'x'",
        "INSERT INTO u VALUES (length(set_config('noetl.mark', 'x', false)))",
        "INSERT INTO u VALUES (1) RETURNING set_config('noetl.mark', 'x', false)",
        "UPDATE u SET a = length(set_config('noetl.mark', 'x', false))",
        "INSERT INTO u VALUES (1); SELECT pg_advisory_lock(1)",
        "SET noetl.mark = 'x'",
    ],
)
async def test_what_a_row_does_to_its_session_by_its_own_words_is_gone_with_it(
    single: PostgresTool, statement: str
) -> None:
    await single.run(call("CREATE TABLE u (a int); INSERT INTO u VALUES (1)"))
    with open_frame():
        assert (await single.run(call(statement, task="save"))).error is None
        assert clean(await single.run(call(MARKS, task="save")))


async def test_a_row_that_fails_or_is_cancelled_leaves_nothing_to_the_next(single: PostgresTool, dsn: str) -> None:
    await single.run(call("CREATE TABLE u (a int CHECK (a < 5))"))
    slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM mark_slow(); RETURN NEW; END $$"
    lock = "CREATE FUNCTION mark_slow() RETURNS void LANGUAGE sql AS $$ SELECT pg_advisory_lock(9), pg_sleep(600) $$"
    await single.run(call(f"CREATE TABLE s (a int); {lock}; {slow}"))
    await single.run(call("CREATE TRIGGER slow BEFORE INSERT ON s FOR EACH ROW EXECUTE FUNCTION slow()"))
    with open_frame():
        await single.run(call("INSERT INTO t VALUES (1)", task="save"))
        assert (await single.run(call("INSERT INTO u VALUES (7)", task="save"))).error is not None
        assert clean(await single.run(call(MARKS, task="save")))

        running = asyncio.create_task(single.run(call("INSERT INTO s VALUES (1)", task="save")))
        await until(lambda: sleepers_in_triggers(dsn))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert clean(await single.run(call(MARKS, task="save")))


async def test_what_a_trigger_locks_for_each_row_is_not_held_from_others_for_as_long_as_there_are_rows(
    tool: PostgresTool,
) -> None:
    locking = "BEGIN PERFORM pg_advisory_lock(5); RETURN NEW; END"
    await tool.run(call(f"CREATE FUNCTION lock() RETURNS trigger LANGUAGE plpgsql AS $$ {locking} $$"))
    await tool.run(call("CREATE TABLE s (a int)"))
    await tool.run(call("CREATE TRIGGER locking BEFORE INSERT ON s FOR EACH ROW EXECUTE FUNCTION lock()"))
    insert = call("INSERT INTO s VALUES (1)", task="save", timeout_seconds=2.0)
    with open_frame():
        assert (await tool.run(insert)).error is None
        one, other = (asyncio.create_task(tool.run(insert)) for _ in range(2))
        await one
        while not other.done():
            assert (await tool.run(insert)).error is None
        assert (await other).error is None


async def sleepers_in_triggers(dsn: str) -> bool:
    return await watched(dsn, "state = 'active' AND wait_event = 'PgSleep'") == 1


async def test_a_session_that_the_server_ends_between_rows_is_replaced(single: PostgresTool, dsn: str) -> None:
    with open_frame():
        await single.run(call("INSERT INTO t VALUES (1)", task="save"))
        admin = await asyncpg.connect(dsn)
        try:
            await admin.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'noetl-worker'"
                " AND datname = current_database()"
            )
        finally:
            await admin.close()
        await until(lambda: no_connections(dsn))
        assert (await single.run(call("INSERT INTO t VALUES (1)", task="save"))).error is None
