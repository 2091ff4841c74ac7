"""What a spark task is given whole is not loaded by the worker; what else reads the same result is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.expressions import render
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_servicekit.chunk_rows import LoadRows
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.step_names import StepNames

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
PLACE = ResultPlace(tenant_id="t", organization_id="o", execution_id=42, step="a")
ROWS: list[JsonValue] = [{"id": number} for number in range(20_000)]


class CountingStore(InMemoryPayloadStore):
    """Knows how much was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, ref: PayloadRef) -> bytes:
        self.read.append(ref.sha256)
        return await super().get(ref)


async def names_of(store: CountingStore, tool: str, data: JsonValue) -> dict[str, object]:
    steps = f"- {{step: a, next: {{arcs: [{{step: b}}]}}}}\n- {{step: b, tool: {tool}}}\n"
    result = await PersistBeforeEmit(store, ArrowTables())(PLACE, Outcome(data=data))
    command = GrantedCommand(
        key=CommandKey(execution_id=42, command_id="c"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="b",
        activation=1,
        attempt=1,
        lease_seconds=30,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
        results={"a": result.to_json()},
        cause_step="a",
    )
    playbook = parse_playbook(HEAD + steps, supported=EVERYTHING)[0]
    return await StepNames(LoadRows(store, ArrowTables()))(command, playbook)


async def test_an_event_tells_how_many_rows_there_are_and_of_which_types() -> None:
    mark: JsonValue = {"_chunks": [["a" * 64, 10, 2, TABLE_MEDIA_TYPE]]}
    schema: JsonValue = [{"name": "id", "type": "bigint"}]
    persist = PersistBeforeEmit(CountingStore(), ArrowTables())
    data: JsonValue = {"rows": mark, "schema": schema, "row_count": 2, "partition_count": 1, "columns": ["id"]}
    wide: JsonValue = {**data, "schema": [{"name": f"column_{n}", "type": "string"} for n in range(500)]}  # type: ignore[dict-item]

    context = (await persist(PLACE, Outcome(data=data))).context
    of_many_columns = (await persist(PLACE, Outcome(data=wide))).context

    assert (context["row_count"], context["partition_count"], context["schema"]) == (2, 1, schema)
    assert of_many_columns["row_count"] == 2
    assert "schema" not in of_many_columns


@pytest.mark.parametrize("template", ["{{ a }}", "{{ a.rows }}", "{{ steps.a.rows }}"])
@pytest.mark.parametrize(
    "config", ["sql: SELECT 1", "code: 'def main(spark, t, context): return t'"], ids=["sql", "code"]
)
async def test_a_table_that_only_spark_reads_stays_where_it_is(template: str, config: str) -> None:
    store = CountingStore()

    names = await names_of(store, f'{{kind: spark, {config}, input: {{t: "{template}"}}}}', {"rows": ROWS})
    given: Any = render(template, names)

    (entry,) = (given if "_chunks" in given else given["rows"])["_chunks"]
    assert (entry[2], entry[3]) == (20_000, TABLE_MEDIA_TYPE)
    assert store.read == []


async def test_rows_in_chunks_stay_in_chunks_with_what_is_known_of_them() -> None:
    store = CountingStore()
    mark: JsonValue = {"_chunks": [["a" * 64, 10, 2, TABLE_MEDIA_TYPE]]}
    data: JsonValue = {"rows": mark, "schema": [{"name": "id", "type": "bigint"}], "row_count": 2}

    names = await names_of(store, '{kind: spark, sql: SELECT 1, input: {t: "{{ a }}"}}', data)

    assert render("{{ a }}", names) == data
    assert len(store.read) == 1


@pytest.mark.parametrize(
    "tool",
    [
        '{kind: spark, sql: "SELECT {{ a.rows | length }}", input: {t: "{{ a.rows }}"}}',
        '{kind: spark, sql: SELECT 1, input: {t: "{{ a.rows[1:3] }}"}}',
        '[{kind: spark, sql: SELECT 1, input: {t: "{{ a.rows }}"}}, {kind: noop, result: "{{ a.rows }}"}]',
    ],
)
async def test_a_table_that_others_read_too_is_loaded(tool: str) -> None:
    store = CountingStore()

    names = await names_of(store, tool, {"rows": ROWS})

    assert render("{{ a.rows | length }}", names) == 20_000
