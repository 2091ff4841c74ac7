"""Of a large table templates load the rows that they read, and little else; scalars load nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.errors import Corrupt
from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.payloads import PayloadPart, PayloadRef
from noetl_core.playbook.expressions import render
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.outputs import kept_output
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.tables import MEDIA_TYPE as ARROW
from noetl_servicekit.chunk_rows import LoadRows, StoredChunk, mark_of
from noetl_servicekit.stored_values import encode_value
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.evaluate_control import EvaluateControl
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.result_refs import result_ref
from noetl_worker.application.step_names import StepNames

PLACE = ResultPlace(tenant_id="t", organization_id="o", execution_id=42, step="a")
ROWS: list[Any] = [{"id": number, "name": f"name of row {number}"} for number in range(50_000)]
LARGE: Any = {"rows": ROWS, "row_count": len(ROWS), "status": "success", "meta": {"page": {"tags": [3]}}}
TABLES = ArrowTables()


class CountingStore(InMemoryPayloadStore):
    """Knows what was fetched of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[int] = []
        self.watched = ""

    def watch(self, ref: PayloadRef) -> None:
        self.watched, self.fetched = ref.uri, []

    async def get(self, ref: PayloadRef) -> bytes:
        return self._count(ref, await super().get(ref))

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        return self._count(ref, await super().get_part(ref, part))

    def _count(self, ref: PayloadRef, data: bytes) -> bytes:
        if ref.uri == self.watched:
            self.fetched.append(len(data))
        return data


def playbook(template: str, condition: str = "false") -> Playbook:
    yaml = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p}}
workflow:
- {{step: a, tool: {{kind: noop}}, next: {{arcs: [{{step: b, when: "{{{{ {condition} }}}}"}}]}}}}
- step: b
  tool: {{kind: noop, result: '{template}'}}
"""
    return parse_playbook(yaml, supported=EVERYTHING)[0]


async def stored(store: CountingStore, data: Any, parsed: Playbook) -> dict[str, Any]:
    persist = PersistBeforeEmit(store, TABLES)
    result = (await persist(PLACE, Outcome(data=data), kept=kept_output(parsed, "a"))).to_json()
    store.watch(result_ref(result["reference"]))  # type: ignore[arg-type]
    return result


def command(results: dict[str, Any], **fields: Any) -> GrantedCommand:
    given: dict[str, Any] = {"step": "b", "cause_step": "a", **fields}
    return GrantedCommand(
        key=CommandKey(execution_id=1, command_id="c"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        activation=1,
        attempt=1,
        lease_seconds=30,
        idempotency_key="k",
        issued_at=datetime(2027, 1, 1, tzinfo=UTC),
        results=results,
        **given,
    )


async def rendered(store: CountingStore, template: str, data: Any = LARGE) -> Any:
    """What the template of a step gives, with the results that its worker has loaded for it."""
    parsed = playbook(template)
    result = await stored(store, data, parsed)
    return render(template, await StepNames(LoadRows(store, TABLES))(command({"a": result}), parsed))


async def condition(store: CountingStore, text: str, data: Any = LARGE) -> Any:
    """What a worker answers to an arc of the step that has just ended."""
    parsed = playbook("x", text)
    result = await stored(store, data, parsed)
    evaluation = Evaluation(place=Place.LEAVE, step="a", activation=1, cause=6, now="2026-01-01T00:00:06.000000Z")
    granted = command({"a": result}, step=evaluation.node, cause_step="", evaluation=evaluation.to_json())
    told = await EvaluateControl(PersistBeforeEmit(store, TABLES), LoadRows(store, TABLES))(granted, parsed)
    return told["context"]["evaluation"]["arcs/0/when"]["is"]  # type: ignore[index, call-overload]


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.row_count }}", 50_000),
        ("{{ a.rows_count }}", 50_000),
        ("{{ result.status }}", "success"),
        ("{{ a.columns | length }}", 2),
        ("{{ a.nothing }}", None),
    ],
)
async def test_scalars_fetch_nothing(store: CountingStore, template: str, value: Any) -> None:
    assert await rendered(store, template) == value
    assert store.fetched == []


@pytest.mark.parametrize(
    ("template", "value", "parts"),
    [
        ("{{ a.rows[0].id }}", 0, 2),
        ("{{ a.rows[49999].name }}", "name of row 49999", 2),
        ("{{ a.rows[-1].id + a.rows[0].id }}", 49_999, 3),
        ("{{ a.data.rows[7].id }}", 7, 2),
        ('{{ result.rows[:3] | sum(attribute="id") }}', 3, 2),
        ("{{ steps.a.rows[8191:8193] | length }}", 2, 3),
        ("{{ (a.rows | first).id }}", 0, 2),
        ("{{ (a.rows | last).id }}", 49_999, 2),
        ("{{ a.rows | length }}", 50_000, 1),
        ("{{ a.meta.page.tags }}", [3], 1),
        ("{{ a.rows[70000].id }}", None, 1),
    ],
)
async def test_slices_fetch_the_header_and_the_batches_that_have_them(
    store: CountingStore, template: str, value: Any, parts: int
) -> None:
    assert await rendered(store, template) == value
    assert len(store.fetched) == parts
    assert sum(store.fetched) < len(store.objects[store.watched]) / 2


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.rows }}", ROWS),
        ('{{ a.rows | sum(attribute="id") + a.rows[0].id }}', sum(range(50_000))),
        ("{{ a.rows[:40000] | length }}", 40_000),
        ("{{ a.rows[::25000] | length }}", 2),
    ],
)
async def test_who_reads_all_or_most_fetches_it_once(store: CountingStore, template: str, value: Any) -> None:
    assert await rendered(store, template) == value
    assert store.fetched == [len(store.objects[store.watched])]


async def test_a_list_of_maps_is_sliced_too(store: CountingStore) -> None:
    assert await rendered(store, "{{ a[2:4] }}", ROWS) == ROWS[2:4]
    assert len(store.fetched) == 2


async def test_rows_of_a_pipeline_are_sliced_wherever_they_stand(store: CountingStore) -> None:
    load = {"rows": ROWS, "status": "success"}
    result = {"results": {"load": load}, "_prev": load, "load": load, **load}

    assert await rendered(store, "{{ a.results.load.rows[1].id + a.load.rows[2].id }}", result) == 3
    assert len(store.fetched) == 2
    assert len(store.objects[store.watched]) < 2_500_000  # the rows are in it once


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("output.data.rows[0].id == 0 and output.data.rows[-1].id == 49999", 5),
        ("output.data.rows | length == 50000", 0),
        ("output.data.rows[10:12] | length == 2", 2),
        ("(output.rows | last).id == 49999", 2),
        ("output.data.meta.page.tags[0] == 3", 1),
        ("a.row_count == 50000", 0),
    ],
)
async def test_a_condition_that_reads_rows_loads_those(store: CountingStore, text: str, parts: int) -> None:
    assert await condition(store, text) is True
    assert len(store.fetched) <= parts
    assert sum(store.fetched) < len(store.objects[store.watched]) / 2


async def test_a_condition_that_reads_all_rows_loads_them_once(store: CountingStore) -> None:
    assert await condition(store, "output.data.rows | sum(attribute='id') > 0 and a.rows[0].id == 0") is True
    assert store.fetched[-1] == len(store.objects[store.watched])


async def test_a_damaged_batch_is_found_without_the_others(store: CountingStore) -> None:
    parsed = playbook("{{ a.rows[49999].id }}")
    result = await stored(store, LARGE, parsed)
    data = store.objects[store.watched]
    store.objects[store.watched] = data[:-1000] + bytes(1000)

    with pytest.raises(Corrupt):
        await StepNames(LoadRows(store, TABLES))(command({"a": result}), parsed)


async def test_the_view_of_a_large_table_stays_small(store: CountingStore) -> None:
    result = await stored(store, LARGE, playbook("x"))
    assert result["reference"]["row_count"] == 50_000
    assert result["reference"]["view"]["bytes"] < 4096


class ChunkStore(CountingStore):
    """Counts chunks."""

    def _count(self, ref: PayloadRef, data: bytes) -> bytes:
        self.fetched.append(len(data))
        return data


async def streamed(store: CountingStore) -> Any:
    """A result whose rows are in three chunks."""
    chunks = []
    for start in (0, 10, 20):
        data = encode_value(ROWS[start : start + 10], TABLES).data
        ref = await store.put(tenant_id="t", organization_id="o", data=data, media_type=ARROW)
        chunks.append(StoredChunk(ref=ref, row_count=10))
    return {"rows": mark_of(chunks), "row_count": 30}


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("output.data.rows | length == 30", 0),
        ("output.data.rows[-1].id == 29", 1),
        ("output.data.rows[9:11] | length == 2 and output.data.rows[9].id == 9", 2),
        ("output.data.rows | sum(attribute='id') == 435", 3),
    ],
)
async def test_a_condition_loads_the_chunks_that_have_its_rows(text: str, chunks: int) -> None:
    store = ChunkStore()

    assert await condition(store, text, await streamed(store)) is True

    assert len(store.fetched) == 1 + chunks


@pytest.mark.parametrize(
    ("template", "value", "chunks"),
    [
        ("{{ a.row_count }}", 30, 0),
        ("{{ a.rows | length }}", 30, 0),
        ("{{ a.rows[0].id + a.rows[9].id }}", 9, 1),
        ("{{ a.rows[-1].id }}", 29, 1),
        ('{{ result.rows[8:12] | map(attribute="id") | list }}', [8, 9, 10, 11], 2),
        ("{{ a.rows[99].id }}", None, 0),
        ('{{ a.rows | sum(attribute="id") }}', 435, 3),
        ("{{ a.rows == a.data.rows }}", True, 3),
    ],
)
async def test_of_rows_in_chunks_those_are_fetched_that_have_them(template: str, value: Any, chunks: int) -> None:
    store = ChunkStore()

    assert await rendered(store, template, await streamed(store)) == value

    assert len(store.fetched) == 1 + chunks  # the result itself, and what it refers to
