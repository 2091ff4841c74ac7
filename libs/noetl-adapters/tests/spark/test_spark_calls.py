"""Calls in a real session, one for all tests: a JVM takes seconds to start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.spark.driver_process import SparkDriver
from noetl_core.canonical import JsonValue, encode
from noetl_core.ports.spark import SparkCall, SparkEnd, SparkProgress, SparkSettings, SparkWork
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_core.stages.partitions import RESULT_TYPE, outcomes_type
from noetl_servicekit.chunk_rows import LoadRows
from noetl_testkit.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXAMPLE = Path(__file__).parents[4] / "examples" / "spark" / "payloads.py"
TENANT, ORGANIZATION = "acme", "sales"
FAILED_ONE = outcomes_type(((1, 1),))
SLEEPS = """
import time
def main(spark):
    spark.sparkContext.range({tasks}, numSlices={tasks}).foreach(lambda _: time.sleep(3600))
"""
JOIN = """
SELECT land, count(*) AS n FROM orders JOIN cities USING (city) WHERE id < :limit GROUP BY land ORDER BY n DESC
"""
MULTIPLIES = """
def main(spark, numbers, factor):
    print("factor", factor)
    return numbers.selectExpr(f"n * {factor} AS n")
"""
FAILS_IN_A_TASK = """
def main(spark):
    def invert(n):
        return 1 / n
    return spark.sparkContext.range(3).map(invert).collect()
"""


class Session:
    """The session with the store that its tasks write to."""

    def __init__(self, directory: Path) -> None:
        self.store = DirectoryPayloadStore(directory)
        self.states: list[str] = []
        self.progressed: list[str] = []
        environment = {**os.environ, "NOETL_PAYLOAD_URL": directory.as_uri()}
        # No more threads than a test can fill.
        settings = SparkSettings(master="local[2]", memory="512m", start_seconds=500)
        self.driver = SparkDriver(settings, environment=environment, reports=self)

    def session(self, state: str) -> None:
        self.states.append(state)

    def began(self) -> None:
        pass

    def ended(self, outcome: str) -> None:
        pass

    def progress(self, call: SparkWork, progress: SparkProgress) -> None:
        self.progressed.append(call.call_id)

    def said(self, line: str) -> None:
        pass

    async def run(self, call_id: str, **asked: Any) -> SparkEnd:
        return await self.driver.run(
            SparkCall(
                call_id=call_id,
                tenant_id=TENANT,
                organization_id=ORGANIZATION,
                execution_id=call_id[0],
                step="step",
                **asked,
            )
        )

    async def rows(self, end: SparkEnd) -> JsonValue:
        assert end.failure is None, end.failure
        loaded = await LoadRows(self.store, ArrowTables())(end.data, tenant_id=TENANT, organization_id=ORGANIZATION)
        assert isinstance(loaded, dict)
        return loaded["rows"]

    async def chunk(self, rows: Sequence[Mapping[str, Any]], *, as_json: bool = False) -> list[JsonValue]:
        data = encode([*rows]) if as_json else ArrowTables().encode(rows).data
        media_type = "application/json" if as_json else TABLE_MEDIA_TYPE
        ref = await self.store.put(tenant_id=TENANT, organization_id=ORGANIZATION, data=data, media_type=media_type)
        return [ref.sha256, ref.bytes, len(rows), media_type]

    async def document(self, value: JsonValue, media_type: str) -> list[JsonValue]:
        ref = await self.store.put(
            tenant_id=TENANT, organization_id=ORGANIZATION, data=encode(value), media_type="application/json"
        )
        return [ref.sha256, ref.bytes, 0, media_type]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    one = Session(tmp_path_factory.mktemp("payloads"))
    async with one.driver:
        await one.driver.warm()
        yield one


async def test_a_reduce_reads_results_outcomes_and_chunks_and_only_its_partition(session: Session) -> None:
    chunk = await session.chunk([{"word": "a", "n": 1}])
    documents: list[tuple[JsonValue, str]] = [
        ({"rows": [{"word": "b", "n": 2}]}, RESULT_TYPE),
        ({"rows": {"_chunks": [chunk]}}, RESULT_TYPE),
        ([{"data": [{"word": "a", "n": 4}]}, {"status": "error", "error": {}}, {"word": "c", "n": 8}], FAILED_ONE),
    ]
    entries = [await session.document(value, media_type) for value, media_type in documents]
    query = "SELECT word, sum(n) AS n FROM partitions GROUP BY word ORDER BY word"

    whole = await session.run("1/whole", sql=query, tables={"partitions": {"_chunks": entries}})
    assert await session.rows(whole) == [{"word": "a", "n": 5}, {"word": "b", "n": 2}, {"word": "c", "n": 8}]

    rows: list[JsonValue] = []
    for index in range(2):
        cut: dict[str, JsonValue] = {"by": ["word"], "count": 2, "index": index}
        part = await session.run("1/part", sql=query, tables={"partitions": {"_chunks": entries, "partition": cut}})
        found = await session.rows(part)
        assert isinstance(found, list)
        rows += found
    assert sorted(rows, key=str) == sorted(await session.rows(whole) or [], key=str)  # type: ignore[arg-type]


async def test_a_query_reads_payloads_and_its_tasks_store_the_rows(session: Session) -> None:
    orders = [await session.chunk([{"id": n, "city": "Oslo" if n % 2 else "Rome"}]) for n in range(5)]
    cities = [await session.chunk([{"city": "Oslo", "land": "no"}, {"city": "Rome", "land": "it"}])]

    end = await session.run(
        "join",
        sql=JOIN,
        tables={"orders": {"_chunks": orders}, "cities": {"_chunks": cities}},
        values={"limit": 5, "not_in_the_query": "x"},
    )

    assert await session.rows(end) == [{"land": "it", "n": 3}, {"land": "no", "n": 2}]
    assert isinstance(end.data, dict)
    assert end.data["row_count"] == 2
    assert end.data["columns"] == ["land", "n"]
    assert end.data["schema"] == [{"name": "land", "type": "string"}, {"name": "n", "type": "bigint"}]


async def test_types_survive_from_query_to_query_and_order_is_kept(session: Session) -> None:
    sql = "SELECT id, DATE'2024-02-01' AS day, CAST(id AS DECIMAL(9,2)) AS price, X'01' AS raw FROM range(0, 9, 1, 3)"
    first = await session.run("typed", sql=sql)
    assert isinstance(first.data, dict)
    assert first.data["partition_count"] == 3

    assert isinstance(first.data["rows"], dict)
    table = {**first.data["rows"], "schema": first.data["schema"]}
    end = await session.run("again", sql="SELECT id, price + 1 AS more, year(day) AS y FROM t", tables={"t": table})

    assert await session.rows(end) == [{"id": n, "more": n + 1.0, "y": 2024} for n in range(9)]


async def test_chunks_may_differ_in_what_they_know_of_their_columns(session: Session) -> None:
    chunks = [
        await session.chunk([{"a": None, "b": 1}]),
        await session.chunk([{"a": 2, "b": 1.5}]),
        await session.chunk([{"a": 3, "b": "x"}, {"b": [1]}], as_json=True),
    ]

    end = await session.run("mixed", sql="SELECT a, b FROM t", tables={"t": {"_chunks": chunks}})

    assert await session.rows(end) == [
        {"a": None, "b": "1"},
        {"a": 2, "b": "1.5"},
        {"a": 3, "b": "x"},
        {"a": None, "b": "[1]"},
    ]


async def test_a_result_without_rows_keeps_its_columns(session: Session) -> None:
    none = await session.run("none", sql="SELECT id, 'x' AS name FROM range(3) WHERE id > 7")
    assert isinstance(none.data, dict)
    assert (none.data["row_count"], none.data["columns"]) == (0, ["id", "name"])

    end = await session.run("of_none", sql="SELECT count(name) AS n FROM t", tables={"t": none.data["rows"]})

    assert await session.rows(end) == [{"n": 0}]


async def test_code_is_given_frames_and_values_and_may_give_either_back(session: Session) -> None:
    chunk = await session.chunk([{"n": 1}, {"n": 2}])

    end = await session.run("code", code=MULTIPLIES, tables={"numbers": {"_chunks": [chunk]}}, values={"factor": 3})
    data = await session.run("data", code="def main(spark):\n    return {'count': spark.range(4).count()}")

    assert await session.rows(end) == [{"n": 3}, {"n": 6}]
    assert end.stdout == "factor 3\n"
    assert data.data == {"count": 4}


async def test_the_example_of_a_program_reads_and_writes_payloads(session: Session, tmp_path: Path) -> None:
    code = f"""
import runpy
from pathlib import Path
def main(spark):
    program = runpy.run_path({str(EXAMPLE)!r})
    counted = program["count_by_city"](spark, {TENANT!r}, {ORGANIZATION!r}, Path({str(tmp_path / "into.json")!r}))
    return [row.asDict() for row in counted.collect()]
"""

    end = await session.run("example", code=code)

    assert end.data == [{"city": "Oslo", "count": 2}, {"city": "Rome", "count": 1}], end.failure


async def test_errors_are_told_in_the_words_of_their_language(session: Session) -> None:
    query = await session.run("bad_sql", sql="SELECT x FROM nowhere")
    task = await session.run(
        "bad_task",
        code=FAILS_IN_A_TASK,
    )
    missing = {"_chunks": [["0" * 64, 1, 1, TABLE_MEDIA_TYPE]], "schema": [{"name": "a", "type": "int"}]}
    gone = await session.run("gone", sql="SELECT * FROM t", tables={"t": missing})

    assert query.failure is not None
    assert (query.failure.kind, query.failure.code) == ("not_found", "SPARK_TABLE_OR_VIEW_NOT_FOUND")
    assert task.failure is not None
    assert (task.failure.code, task.failure.message) == ("PY_ZeroDivisionError", "division by zero (line 4)")
    assert gone.failure is not None
    assert (gone.failure.code, gone.failure.retryable) == ("REFERENCE_NOT_AVAILABLE", True)
    assert not any("\tat " in end.failure.message for end in (query, task, gone) if end.failure)


async def test_views_of_calls_at_the_same_time_do_not_meet(session: Session) -> None:
    chunks = [await session.chunk([{"n": number}]) for number in range(3)]

    ends = await asyncio.gather(
        *(
            session.run(f"{index} at once", sql="SELECT n FROM t", tables={"t": {"_chunks": [chunk]}})
            for index, chunk in enumerate(chunks)
        )
    )

    assert [await session.rows(end) for end in ends] == [[{"n": 0}], [{"n": 1}], [{"n": 2}]]


async def test_a_cancelled_call_gives_its_threads_back(session: Session) -> None:
    before = session.driver.process_ids
    code = SLEEPS.format(tasks=2)
    slow = asyncio.create_task(session.run("slow", code=code))
    await until(lambda: "slow" in session.progressed, seconds=300)

    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    end = await session.run("after", sql="SELECT count(*) AS n FROM range(10)")  # both threads were taken

    assert await session.rows(end) == [{"n": 10}]
    assert session.driver.process_ids == before


async def test_a_jvm_that_is_killed_takes_its_driver_and_its_calls_with_it(session: Session) -> None:
    driver_pid, jvm_pid = session.driver.process_ids
    code = SLEEPS.format(tasks=1)
    waiting = asyncio.create_task(session.run("waiting", code=code))
    await until(lambda: "waiting" in session.progressed, seconds=300)

    os.kill(jvm_pid, signal.SIGKILL)
    end = await waiting

    assert end.failure is not None
    assert (end.failure.code, end.failure.retryable) == ("SPARK_SESSION_LOST", True)
    await until(lambda: not Path(f"/proc/{driver_pid}").exists())
    assert session.states[-1] == "lost"
    assert session.driver.process_ids == ()
