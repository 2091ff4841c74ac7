"""Calls of the spark tool: what the session is asked, and what becomes of its answer. No Spark is needed for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue, decode, sha256_hex
from noetl_core.errors import Unavailable
from noetl_core.playbook.views import StepView
from noetl_core.ports.spark import SparkCall, SparkEnd, SparkFailure, SparkWork
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.stored_values import encode_value
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.spark import SparkTool
from noetl_worker.tools.spark_inputs import SparkInputs

MARK: JsonValue = {"_chunks": [["a" * 64, 10, 2, TABLE_MEDIA_TYPE]]}


@dataclass
class StandIn:
    """Answers as a session would, and remembers what it was asked."""

    end: SparkEnd = field(default_factory=lambda: SparkEnd(data={"status": "success"}))
    problem: str = ""
    hangs: bool = False
    asked: list[SparkCall] = field(default_factory=list)
    was_cancelled: bool = False

    async def warm(self) -> None:
        if self.problem:
            raise Unavailable(self.problem)

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None: ...

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        assert isinstance(call, SparkCall)
        self.asked.append(call)
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.was_cancelled = True
        return self.end


@dataclass
class Sink:
    """Takes chunks."""

    chunk_rows: int = 2
    taken: list[list[JsonValue]] = field(default_factory=list)

    async def put(self, rows: list[JsonValue]) -> None:
        self.taken.append(rows)


@pytest.fixture
def store() -> InMemoryPayloadStore:
    return InMemoryPayloadStore()


@pytest.fixture
def session() -> StandIn:
    return StandIn()


@pytest.fixture
def tool(session: StandIn, store: InMemoryPayloadStore) -> SparkTool:
    tables = ArrowTables()
    return SparkTool(session, SparkInputs(store, tables), LoadRows(store, tables))


def call(
    config: Mapping[str, JsonValue] | None = None,
    *,
    inputs: Mapping[str, JsonValue] | None = None,
    names: Mapping[str, object] | None = None,
    **more: Any,
) -> ToolCall:
    return ToolCall(
        tenant_id="acme",
        organization_id="ops",
        execution_id=42,
        step="s",
        kind="spark",
        config=config or {"sql": "SELECT 1"},
        input=inputs or {},
        names=names or {},
        **more,
    )


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


async def test_results_by_reference_become_views_and_nothing_is_read(
    tool: SparkTool, session: StandIn, store: InMemoryPayloadStore
) -> None:
    schema: JsonValue = [{"name": "id", "type": "bigint"}]
    result = StepView({"rows": MARK, "schema": schema, "row_count": 2})

    await tool.run(
        call(
            {"sql": "SELECT * FROM whole JOIN part WHERE id > :least"},
            inputs={"whole": "{{ a }}", "part": "{{ a.rows }}", "least": "{{ a.row_count }}"},
            names={"a": result},
        )
    )

    (asked,) = session.asked
    assert asked.tables == {
        "whole": {"_chunks": [["a" * 64, 10, 2, TABLE_MEDIA_TYPE]], "schema": schema},
        "part": MARK,
    }
    assert asked.values == {"least": 2}
    assert (asked.sql, asked.code) == ("SELECT * FROM whole JOIN part WHERE id > :least", None)
    assert not store.objects


async def test_a_list_of_maps_is_stored_and_becomes_a_view(
    tool: SparkTool, session: StandIn, store: InMemoryPayloadStore
) -> None:
    rows: JsonValue = [{"id": 1}, {"id": 2}]

    await tool.run(call(inputs={"listed": "{{ l }}", "result": "{{ r }}"}, names={"l": rows, "r": {"rows": rows}}))

    (asked,) = session.asked
    (stored,) = store.objects.values()
    digest = sha256_hex(stored)
    assert asked.tables["listed"] == {"_chunks": [[digest, len(stored), 2, TABLE_MEDIA_TYPE]]}
    assert asked.tables["result"] == asked.tables["listed"]


async def test_an_empty_list_is_a_table_only_where_rows_are_written(tool: SparkTool, session: StandIn) -> None:
    names = {"a": StepView({"rows": [], "columns": ["id"], "ids": []})}

    await tool.run(
        call({"code": "def main(spark, **k): ..."}, inputs={"t": "{{ a }}", "ids": "{{ a.ids }}"}, names=names)
    )

    (asked,) = session.asked
    assert asked.tables == {"t": {"_chunks": [], "columns": ["id"]}}
    assert asked.values == {"ids": []}


async def test_a_large_result_that_was_handed_on_is_found_by_its_digest(
    tool: SparkTool, session: StandIn, store: InMemoryPayloadStore
) -> None:
    data = encode_value({"rows": [{"id": 1}], "status": "ok"}, ArrowTables()).data
    ref = await store.put(tenant_id="acme", organization_id="ops", data=data, media_type=TABLE_MEDIA_TYPE)

    await tool.run(call(inputs={"t": "{{ a }}"}, names={"a": {"_ref": {"sha256": ref.sha256}, "rows_count": 1}}))

    assert session.asked[0].tables == {"t": {"_chunks": [[ref.sha256, len(data), 0, TABLE_MEDIA_TYPE]]}}


@pytest.mark.parametrize(
    ("config", "inputs", "said"),
    [
        ({}, {}, "`sql` or `code`"),
        ({"sql": "SELECT 1", "code": "x"}, {}, "not both"),
        ({"sql": "SELECT 1"}, {"p": {"a": 1}}, "neither a table nor a parameter"),
        ({"sql": "SELECT 1"}, {"a b": [{"x": 1}]}, "cannot be a view"),
        ({"code": "def main(spark): ..."}, {"spark": 1}, "name of the session"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_spark_is_asked(
    tool: SparkTool, session: StandIn, config: Mapping[str, JsonValue], inputs: Mapping[str, JsonValue], said: str
) -> None:
    outcome = await tool.run(call({"x": 1, **config}, inputs=inputs))

    assert failure(outcome) == (ErrorKind.SCHEMA, "TOOL_CONFIG", False)
    assert outcome.error is not None
    assert said in outcome.error.message
    assert not session.asked


async def test_secrets_are_not_given_to_spark(tool: SparkTool, session: StandIn) -> None:
    keychain: Any = {"shop": {"password": "a-long-password"}}

    given = await tool.run(call(inputs={"p": "{{ keychain.shop.password }}"}, keychain=keychain))
    written = await tool.run(call({"sql": "SELECT '{{ keychain.shop.password }}'"}, keychain=keychain))

    assert failure(given)[1] == failure(written)[1] == "TOOL_CONFIG"
    assert not session.asked


async def test_an_error_of_spark_is_an_outcome_with_the_lines_of_the_code(tool: SparkTool, session: StandIn) -> None:
    session.end = SparkEnd(
        failure=SparkFailure(kind="parse", code="SPARK_PARSE_SYNTAX_ERROR", message="near 'x'", lines="line 1"),
        stdout="hello",
    )

    outcome = await tool.run(call())

    assert failure(outcome) == (ErrorKind.PARSE, "SPARK_PARSE_SYNTAX_ERROR", False)
    assert outcome.py == {"traceback": "line 1"}
    assert outcome.printed is not None
    assert outcome.printed.stdout == "hello"


async def test_a_session_that_does_not_start_may_be_tried_again(tool: SparkTool, session: StandIn) -> None:
    session.problem = "Spark needs Java 17"

    outcome = await tool.run(call())

    assert failure(outcome) == (ErrorKind.UNKNOWN, "SPARK_UNAVAILABLE", True)


async def test_a_timeout_cancels_the_call(tool: SparkTool, session: StandIn) -> None:
    session.hangs = True

    outcome = await tool.run(call(timeout_seconds=0.01))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    assert session.was_cancelled


async def test_rows_of_a_streaming_call_go_out_in_chunks(
    tool: SparkTool, session: StandIn, store: InMemoryPayloadStore
) -> None:
    entries: list[JsonValue] = []
    for start, stop in ((0, 3), (3, 5)):
        table = ArrowTables().encode([{"n": number} for number in range(start, stop)])
        ref = await store.put(tenant_id="acme", organization_id="ops", data=table.data, media_type=TABLE_MEDIA_TYPE)
        entries.append([ref.sha256, ref.bytes, stop - start, TABLE_MEDIA_TYPE])
    session.end = SparkEnd(data={"rows": {"_chunks": entries}, "row_count": 5})
    sink = Sink()

    await tool.run(call(chunks=sink))

    assert sink.taken == [[{"n": 0}, {"n": 1}], [{"n": 2}, {"n": 3}], [{"n": 4}]]


async def test_code_is_rendered_if_it_is_a_template_and_runs_as_written_if_not(
    tool: SparkTool, session: StandIn
) -> None:
    await tool.run(call({"code": "def main(spark): return {{ n }}"}, names={"n": 3}))
    await tool.run(call({"code": "def main(spark): return {{'a': 1}['a']}"}))

    assert [asked.code for asked in session.asked] == [
        "def main(spark): return 3",
        "def main(spark): return {{'a': 1}['a']}",
    ]


async def test_json_rows_of_mixed_types_are_stored_as_they_are(
    tool: SparkTool, session: StandIn, store: InMemoryPayloadStore
) -> None:
    rows: JsonValue = [{"a": 1}, {"a": "x"}]

    await tool.run(call(inputs={"t": "{{ rows }}"}, names={"rows": rows}))

    (stored,) = store.objects.values()
    assert decode(stored) == rows
