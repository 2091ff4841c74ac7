"""duckdb steps with a real DuckDB: results, errors, files, secrets, and that no query outlives its call."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from noetl_core.canonical import JsonValue
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_testkit.until import until
from noetl_worker.application.credentials import Auth, Credential
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools import duckdb_database
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.duckdb import DuckdbTool
from noetl_worker.tools.duckdb_secrets import secret_statements
from noetl_worker.tools.duckdb_sessions import DuckdbLimits, DuckdbSessions
from noetl_worker.tools.http_clients import HttpClients
from noetl_worker.tools.script_source import ScriptLimits, ScriptSources

ENDLESS = "SELECT count(*) FROM range(1000000000000) a, range(1000000) b"


@pytest.fixture
def credentials() -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("token", "bearer", {"token": "nobody-may-see-this"})
    stored.add("odd", "snowflake", {"account": "x"})
    return stored


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[DuckdbSessions]:
    limits = DuckdbLimits(threads=1, root=tmp_path, max_result_bytes=5_000_000, memory_limit="500MB")
    async with DuckdbSessions(limits, environment=os.environ) as sessions:
        yield sessions


@pytest.fixture
async def tool(
    sessions: DuckdbSessions, credentials: InMemoryToolCredentials, tmp_path: Path
) -> AsyncIterator[DuckdbTool]:
    async with HttpClients() as clients:
        scripts = ScriptSources(limits=ScriptLimits(root=tmp_path), clients=clients, credentials=credentials)
        yield DuckdbTool(sessions, credentials=credentials, scripts=scripts)


def call(
    command: JsonValue = None,
    *,
    auth: JsonValue = None,
    timeout_seconds: float | None = 60.0,
    tenant_id: str = "default",
    names: dict[str, object] | None = None,
    database: str | None = None,
    config: Mapping[str, JsonValue] | None = None,
) -> ToolCall:
    return ToolCall(
        tenant_id=tenant_id,
        organization_id="default",
        execution_id=1,
        step="s",
        kind="duckdb",
        config={"command": command, "database": database} if config is None else config,
        auth=auth,
        names=names or {},
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


async def test_the_rows_of_a_statement_are_the_result(tool: DuckdbTool) -> None:
    outcome = await tool.run(call("SELECT {{ n }} AS a, 'x' AS b", names={"n": 7}))

    statement = {"status": "success", "rows": [{"a": 7, "b": "x"}], "row_count": 1, "columns": ["a", "b"]}
    assert data(outcome) == {**statement, "statement_count": 1, "command_0": statement}


async def test_values_are_json(tool: DuckdbTool) -> None:
    outcome = await tool.run(
        call(
            """
            SELECT 1.50::DECIMAL(9, 2) AS d, DATE '2024-01-02' AS day, TIMESTAMP '2024-01-02 03:04:05' AS at,
                   TIMESTAMPTZ '2024-01-02 03:04:05+01' AS zoned, '{"a": [1]}'::JSON AS j, 'ab'::BLOB AS raw,
                   '9b2f0f5e-0000-4000-8000-000000000001'::UUID AS u, {'x': 1} AS s, MAP {'k': 2} AS m,
                   [1, NULL] AS l, 'nan'::DOUBLE AS nan, 9007199254740993 AS big, NULL AS nothing, true AS yes
            """
        )
    )

    assert data(outcome)["rows"] == [
        {
            "d": 1.5,
            "day": "2024-01-02",
            "at": "2024-01-02T03:04:05",
            "zoned": "2024-01-02T02:04:05+00:00",
            "j": {"a": [1]},
            "raw": base64.b64encode(b"ab").decode(),
            "u": "9b2f0f5e-0000-4000-8000-000000000001",
            "s": {"x": 1},
            "m": {"k": 2},
            "l": [1, None],
            "nan": "NaN",
            "big": "9007199254740993",
            "nothing": None,
            "yes": True,
        }
    ]


async def test_statements_run_one_by_one_and_one_that_fails_stops_no_other(tool: DuckdbTool) -> None:
    outcome = await tool.run(
        call(
            "CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1), (2); INSERT INTO t VALUES (1);"
            " UPDATE t SET a = a + 10 RETURNING a; DELETE FROM t; SELECT ';' AS semicolon"
        )
    )

    assert failure(outcome) == (ErrorKind.DB_CONSTRAINT, "DUCKDB_ConstraintException", False)
    ends = [kept(outcome)[f"command_{index}"] for index in range(6)]
    assert [end["status"] for end in ends] == ["success", "success", "error", "success", "success", "success"]
    assert [end.get("row_count") for end in ends] == [0, 2, None, 2, 2, 1]
    assert ends[1]["message"] == "INSERT 2"
    assert ends[3]["rows"] == [{"a": 11}, {"a": 12}]
    assert kept(outcome)["rows"] == [{"semicolon": ";"}]
    result = outcome.result()
    assert isinstance(result, dict)
    assert result["status"] == "error"


@pytest.mark.parametrize(
    ("sql", "kind", "code"),
    [
        ("SELEC 1", ErrorKind.PARSE, "DUCKDB_ParserException"),
        ("SELECT * FROM nowhere", ErrorKind.SCHEMA, "DUCKDB_CatalogException"),
        ("SELECT nothing", ErrorKind.SCHEMA, "DUCKDB_BinderException"),
        ("SELECT 'x'::INT", ErrorKind.TRANSFORM, "DUCKDB_ConversionException"),
        ("SELECT * FROM read_csv('nowhere.csv')", ErrorKind.STORAGE_ACCESS, "DUCKDB_IOException"),
    ],
)
async def test_errors_have_kinds(tool: DuckdbTool, sql: str, kind: ErrorKind, code: str) -> None:
    assert failure(await tool.run(call(sql))) == (kind, code, False)


async def test_statements_of_other_kinds_give_what_they_give(tool: DuckdbTool) -> None:
    outcome = await tool.run(
        call("PIVOT (SELECT 1 AS a, 'x' AS b) ON b USING sum(a); SET threads = 1; SHOW TABLES; CHECKPOINT")
    )

    result = data(outcome)
    assert result["command_0"]["rows"] == [{"x": 1}]
    assert result["command_1"]["message"] == "SET 0"
    assert result["command_2"]["rows"] == []


@pytest.mark.parametrize(
    "config",
    [
        {"query": "SELECT 5 AS n"},
        {"commands": ["SELECT 4 AS n", "SELECT 5 AS n"]},
        {"command_b64": base64.b64encode(b"SELECT {{ 5 }} AS n").decode()},
        {"query_b64": base64.b64encode(b"SELECT 5 AS n").decode()},
        {"script": {"uri": "five.sql", "source": {"type": "file"}}},
    ],
)
async def test_sql_can_stand_in_many_places(tool: DuckdbTool, tmp_path: Path, config: dict[str, JsonValue]) -> None:
    (tmp_path / "five.sql").write_text("SELECT {{ 5 }} AS n;")

    assert data(await tool.run(call(config=config)))["rows"] == [{"n": 5}]


@pytest.mark.parametrize("config", [{}, {"command": " ; -- nothing\n"}, {"commands": []}])
async def test_without_sql_there_is_an_error(tool: DuckdbTool, config: dict[str, JsonValue]) -> None:
    outcome = await tool.run(call(config=config))

    assert failure(outcome) == (ErrorKind.SCHEMA, "NO_SQL", False)
    assert outcome.error is not None
    assert outcome.error.message == "No SQL command provided"


async def test_a_file_is_kept_and_a_database_in_memory_is_not(tool: DuckdbTool, tmp_path: Path) -> None:
    await tool.run(call("CREATE TABLE t AS SELECT 1 AS a", database="kept.duckdb"))
    await tool.run(call("CREATE TABLE t AS SELECT 1 AS a"))

    assert data(await tool.run(call("FROM t", database="kept.duckdb")))["rows"] == [{"a": 1}]
    assert failure(await tool.run(call("FROM t")))[1] == "DUCKDB_CatalogException"
    assert (tmp_path / "kept.duckdb").exists()


async def test_calls_on_one_file_wait_for_each_other(tool: DuckdbTool) -> None:
    statements = "CREATE TABLE IF NOT EXISTS t (a INT); INSERT INTO t VALUES (1); SELECT count(*) AS n FROM t"

    outcomes = await asyncio.gather(*(tool.run(call(statements, database="shared.duckdb")) for _ in range(4)))

    assert sorted(data(outcome)["rows"][0]["n"] for outcome in outcomes) == [1, 2, 3, 4]


def test_a_file_that_another_process_is_just_making_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made.duckdb"
    waits: list[float] = []
    made.touch()  # there, and no database yet

    def meanwhile(seconds: float) -> None:
        waits.append(seconds)
        made.unlink()

    monkeypatch.setattr("noetl_worker.tools.duckdb_database.time.sleep", meanwhile)
    database = duckdb_database.Database(database=str(made), lock_seconds=60.0)

    assert len(waits) == 1
    assert made.exists()
    database.close()


async def test_a_file_that_is_no_database_is_said_to_be_none(tool: DuckdbTool, tmp_path: Path) -> None:
    other = tmp_path / "other.duckdb"
    other.write_bytes(b"something else")
    os.utime(other, (0, 0))

    outcome = await tool.run(call("SELECT 1", database="other.duckdb"))

    assert failure(outcome)[1] == "DUCKDB_IOException"


async def test_a_transaction_that_is_not_ended_is_undone_and_said_so(tool: DuckdbTool) -> None:
    outcome = await tool.run(call("BEGIN; CREATE TABLE t (a INT)", database="tx.duckdb"))

    assert failure(outcome) == (ErrorKind.CLIENT_ERROR, "DUCKDB_OPEN_TRANSACTION", False)
    assert failure(await tool.run(call("FROM t", database="tx.duckdb")))[1] == "DUCKDB_CatalogException"
    ended = await tool.run(call("BEGIN; CREATE TABLE t (a INT); COMMIT", database="tx.duckdb"))
    assert ended.status == "ok"


async def test_many_rows_come_in_batches_and_too_many_are_refused(tool: DuckdbTool) -> None:
    many = await tool.run(call("SELECT range AS n FROM range(30000)"))
    too_many = await tool.run(call("SELECT repeat('x', 1000) AS text FROM range(30000)"))

    assert [row["n"] for row in data(many)["rows"]] == list(range(30_000))
    assert failure(too_many) == (ErrorKind.STORAGE_QUOTA, "RESULT_TOO_LARGE", False)


async def test_a_timeout_kills_the_query(tool: DuckdbTool, sessions: DuckdbSessions) -> None:
    await tool.run(call("SELECT 1"))  # starting a process counts as well, and takes what a busy machine takes
    outcome = await tool.run(call(f"SELECT 1 AS a; {ENDLESS}", timeout_seconds=3.0))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    assert kept(outcome)["command_0"]["rows"] == [{"a": 1}]
    await until(lambda: not sessions.process_ids)


async def test_a_cancelled_call_kills_the_query_and_frees_the_file(
    tool: DuckdbTool, sessions: DuckdbSessions, tmp_path: Path
) -> None:
    running = asyncio.create_task(tool.run(call(ENDLESS, database="busy.duckdb")))
    await until((tmp_path / "busy.duckdb").exists)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not sessions.process_ids)
    assert data(await tool.run(call("SELECT 1 AS a", database="busy.duckdb")))["rows"] == [{"a": 1}]


async def test_a_process_is_used_again_by_its_own_tenant_only(tool: DuckdbTool, sessions: DuckdbSessions) -> None:
    await tool.run(call("SELECT 1"))
    first = sessions.process_ids
    await tool.run(call("SELECT 1"))
    again = sessions.process_ids
    await tool.run(call("SELECT 1", tenant_id="else"))

    assert first == again
    assert len(set(sessions.process_ids) - set(first)) == 1


async def test_a_killed_process_is_an_error_and_the_next_call_has_another(
    tool: DuckdbTool, sessions: DuckdbSessions, tmp_path: Path
) -> None:
    running = asyncio.create_task(tool.run(call(ENDLESS, database="killed.duckdb")))
    await until((tmp_path / "killed.duckdb").exists)
    os.kill(sessions.process_ids[0], 9)

    assert failure(await running) == (ErrorKind.UNKNOWN, "DUCKDB_DIED", False)
    assert data(await tool.run(call("SELECT 1 AS a")))["rows"] == [{"a": 1}]


async def test_leaving_kills_what_runs(credentials: InMemoryToolCredentials, tmp_path: Path) -> None:
    async with HttpClients() as clients:
        scripts = ScriptSources(limits=ScriptLimits(), clients=clients, credentials=credentials)
        sessions = DuckdbSessions(DuckdbLimits(root=tmp_path), environment=os.environ)
        async with sessions:
            tool = DuckdbTool(sessions, credentials=credentials, scripts=scripts)
            running = asyncio.create_task(tool.run(call(ENDLESS, database="left.duckdb")))
            await until((tmp_path / "left.duckdb").exists)

        assert sessions.process_ids == ()
        assert failure(await running)[1] == "DUCKDB_DIED"
        assert failure(await tool.run(call("SELECT 1")))[1] == "DUCKDB_UNAVAILABLE"


# --- secrets ------------------------------------------------------------------------------------------------


async def test_a_credential_is_a_secret_under_its_alias(tool: DuckdbTool) -> None:
    sql = "SELECT name, type FROM duckdb_secrets(); FROM duckdb_secrets()"
    outcome = await tool.run(call(sql, auth={"api": "token"}))

    assert data(outcome)["command_0"]["rows"] == [{"name": "api", "type": "http"}]
    assert "nobody-may-see-this" not in json.dumps(outcome.envelope())


async def test_no_secret_outlives_its_call(tool: DuckdbTool) -> None:
    kept_secret = await tool.run(call("CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')"))

    assert failure(kept_secret)[1] == "DUCKDB_InvalidInputException"
    assert data(await tool.run(call("FROM duckdb_secrets()")))["rows"] == []


@pytest.mark.parametrize(("auth", "code"), [("nobody", "CREDENTIAL_NOT_FOUND"), ("odd", "CREDENTIAL_UNFIT")])
async def test_without_its_credential_nothing_runs(tool: DuckdbTool, auth: JsonValue, code: str) -> None:
    assert failure(await tool.run(call("SELECT 1", auth=auth))) == (ErrorKind.AUTH, code, False)


async def test_a_credential_may_name_the_file(tool: DuckdbTool, credentials: InMemoryToolCredentials) -> None:
    credentials.add("lake", "duckdb", {"database": "lake.duckdb"})
    await tool.run(call("CREATE TABLE t AS SELECT 1 AS a", database="lake.duckdb"))

    assert data(await tool.run(call("FROM t", auth="lake")))["rows"] == [{"a": 1}]


def statement(kind: str, data: dict[str, JsonValue]) -> list[str]:
    return secret_statements(Auth(aliases={'my "alias"': Credential(name="c", type=kind, data=data)}))


def test_what_duckdb_is_told_about_each_kind_of_credential() -> None:
    postgres = {"db_host": "h", "db_user": "u", "db_password": "it's", "db_name": "d"}

    assert statement("postgres", dict(postgres)) == [
        "CREATE OR REPLACE SECRET \"my \"\"alias\"\"\" (TYPE 'postgres', HOST 'h', PORT '5432', USER 'u',"
        " PASSWORD 'it''s', DATABASE 'd')"
    ]
    s3: dict[str, JsonValue] = {"access_key_id": "k", "secret_access_key": "s", "region": "r", "use_ssl": False}
    assert statement("s3", s3) == [
        "CREATE OR REPLACE SECRET \"my \"\"alias\"\"\" (TYPE 's3', KEY_ID 'k', SECRET 's', REGION 'r', USE_SSL 'false')"
    ]
    assert statement("hmac", {"key_id": "k", "secret_key": "s", "scope": "gs://b"})[0].endswith(
        "(TYPE 'gcs', KEY_ID 'k', SECRET 's', SCOPE 'gs://b')"
    )
    assert statement("duckdb", {"database": "x"}) == []


@pytest.mark.parametrize(("kind", "data"), [("s3", {"key_id": "k"}), ("bearer", {}), ("snowflake", {"account": "a"})])
def test_credentials_that_do_not_fit_are_refused(kind: str, data: dict[str, JsonValue]) -> None:
    with pytest.raises(CallFailed):
        statement(kind, data)
