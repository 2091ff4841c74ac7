"""Large results: a view is stored beside them, and later steps load no more than their templates read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue, decode, encode
from noetl_core.errors import NotFound
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.expressions import render
from noetl_core.playbook.model import OutputScope, Playbook
from noetl_core.playbook.outputs import Kept, Selection, kept_output
from noetl_core.playbook.selection import control_paths
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand, Variables
from noetl_servicekit.chunk_rows import LoadRows
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.event_result import EventResult
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.result_refs import result_ref, view_ref
from noetl_worker.application.step_names import StepNames

PLACE = ResultPlace(tenant_id="t", organization_id="o", execution_id=42, step="a")
ROWS: list[JsonValue] = [{"id": number} for number in range(10_000)]
LARGE: JsonValue = {"rows": ROWS, "status": "success", "meta": {"page": 3}}


class CountingStore(InMemoryPayloadStore):
    """Knows what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, ref: PayloadRef) -> bytes:
        self.read.append(ref.sha256)
        return await super().get(ref)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def playbook(yaml: str) -> Playbook:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
    return parse_playbook(head + yaml, supported=EVERYTHING)[0]


async def persisted(store: CountingStore, data: JsonValue, kept: Kept | None = None, *paths: Any) -> EventResult:
    return await PersistBeforeEmit(store, ArrowTables())(
        PLACE, Outcome(data=data), control_paths=paths, kept=kept or Kept()
    )


async def test_a_small_result_has_no_view(store: CountingStore) -> None:
    result = await persisted(store, {"x": "y" * 60_000})

    assert result.reference is not None
    assert "view" not in result.reference
    assert len(store.objects) == 1


async def test_a_large_result_is_stored_with_its_view_and_the_event_stays_small(store: CountingStore) -> None:
    result = await persisted(store, LARGE)

    assert result.reference is not None
    beside = view_ref(result.reference)
    assert beside is not None
    stored: Any = decode(store.objects[beside.uri])
    assert stored["view"]["row_count"] == 10_000
    assert stored["view"]["_ref"]["ref"] == result.reference["ref_id"]
    assert stored["view"]["_ref"]["sha256"] == result.reference["sha256"]
    assert len(encode(result.to_json())) < 2048


async def test_inline_max_bytes_says_from_where_on_a_result_is_large(store: CountingStore) -> None:
    none = await persisted(store, {"x": 1}, Kept(inline_max_bytes=0))
    plain = await persisted(store, LARGE, Kept(inline_max_bytes=10_000_000))

    assert "view" in (none.reference or {})
    assert "view" not in (plain.reference or {})


async def test_store_and_scope_are_recorded_if_they_are_written(store: CountingStore) -> None:
    result = await persisted(store, {"x": 1}, Kept(store="disk", scope=OutputScope.PERMANENT))
    silent = await persisted(store, {"x": 1})

    assert {key: (result.reference or {}).get(key) for key in ("store", "scope")} == {
        "store": "disk",
        "scope": "permanent",
    }
    assert not {"store", "scope"} & set(silent.reference or {})


async def test_conditions_see_the_view_and_selected_parts_in_the_event(store: CountingStore) -> None:
    kept = Kept(selections=(Selection(path=("rows", "5", "id"), name="fifth"), Selection(path=("meta", "page"))))
    result = await persisted(store, LARGE, kept, ("rows_count",), ("_size_bytes",))

    assert result.context["select"] == {
        "/rows_count": 10_000,
        "/_size_bytes": (result.reference or {})["bytes"],
        "/fifth": 5,
        "/rows/5/id": 5,
        "/meta/page": 3,
    }


async def test_a_selected_secret_stays_out_of_the_event(store: CountingStore) -> None:
    kept = Kept(selections=(Selection(path=("access_token",), name="login"),))
    result = await persisted(store, {"access_token": "hush"}, kept)

    assert b"hush" not in encode(result.to_json())


async def test_more_selected_parts_than_an_event_carries_are_left_to_be_loaded(store: CountingStore) -> None:
    kept = Kept(selections=tuple(Selection(path=(f"f{number}",)) for number in range(5000)))
    data: JsonValue = {f"f{number}": "x" * 500 for number in range(5000)}
    result = await persisted(store, data, kept, ("f4999",))

    assert result.status == "ok"
    assert len(encode(result.to_json())) < 10 * 1024
    told = result.context["select"]
    assert isinstance(told, dict)
    assert "/f4999" in told, "what a condition reads comes first"
    assert "unselected" not in result.context, "nobody in the planner asks for the others"


async def names_for(
    store: CountingStore, yaml: str, data: JsonValue, *, variables: Variables | None = None
) -> dict[str, object]:
    """Names of step `b`, which step `a` led to."""
    parsed = playbook(yaml)
    result = await PersistBeforeEmit(store, ArrowTables())(
        PLACE, Outcome(data=data), control_paths=control_paths(parsed, "a"), kept=kept_output(parsed, "a")
    )
    store.read.clear()
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
        variables=variables or Variables(),
    )
    names = await StepNames(LoadRows(store, ArrowTables()))(command, parsed)
    assert result.reference is not None
    data_was_read = result_ref(result.reference).sha256 in store.read
    return {**names, "data_was_read": data_was_read}


STEPS = """
- {step: a, tool: {kind: noop}, output: {select: [{path: "rows[3].id", as: third}]}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop, input: {x: "TEMPLATE"}}}
"""


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.row_count + 1 }}", 10_001),
        ("{{ steps.a.meta_page }}", 3),
        ("{{ result.third }}", 3),
        ("{{ a.rows[3].id }}", 3),
        ("{{ a.missing }}", None),
    ],
)
async def test_what_the_view_tells_is_read_without_loading_the_result(
    store: CountingStore, template: str, value: JsonValue
) -> None:
    names = await names_for(store, STEPS.replace("TEMPLATE", template), LARGE)

    assert render(template, names) == value
    assert names["data_was_read"] is False


@pytest.mark.parametrize("template", ["{{ a }}", "{{ steps.a }}", "{{ result }}", "{{ a.data }}"])
async def test_a_whole_object_that_is_handed_on_is_its_view(store: CountingStore, template: str) -> None:
    names = await names_for(store, STEPS.replace("TEMPLATE", template), LARGE)
    passed = render(template, names)

    assert isinstance(passed, dict)
    assert passed["third"] == 3
    assert "_ref" in passed
    assert names["data_was_read"] is False


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.rows | list | length }}", 10_000),
        ("{{ a.rows[4].id }}", 4),
        ("{{ a['ro' ~ 'ws'][9].id }}", 9),
        ("{{ a | length }}", 3),
        ("{{ result.rows[1:3] | length }}", 2),
        ("{{ a.items() | list | length }}", 3),
    ],
)
async def test_other_fields_are_loaded_when_they_are_read(
    store: CountingStore, template: str, value: JsonValue
) -> None:
    names = await names_for(store, STEPS.replace("TEMPLATE", template), LARGE)

    assert render(template, names) == value
    assert names["data_was_read"] is True


async def test_selected_names_belong_to_small_results_too(store: CountingStore) -> None:
    template = "{{ [a.third, result.third] }}"
    names = await names_for(store, STEPS.replace("TEMPLATE", template), {"rows": [{"id": n} for n in range(5)]})

    assert render(template, names) == [3, 3]


async def test_user_code_that_may_ask_for_anything_gets_the_view(store: CountingStore) -> None:
    yaml = """
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: python, code: "def main(context): return context"}}
"""
    names = await names_for(store, yaml, LARGE)

    assert "_ref" in str(render("{{ a }}", names))
    assert names["data_was_read"] is False


async def test_a_variable_whose_bytes_are_gone_is_told_as_not_available(store: CountingStore) -> None:
    gone = await store.put(tenant_id="t", organization_id="o", data=b"1", media_type="application/json")
    del store.objects[gone.uri]

    with pytest.raises(NotFound) as refusal:
        await names_for(store, STEPS, {"x": 1}, variables=Variables(refs={"v": gone}))

    assert refusal.value.code == "REFERENCE_NOT_AVAILABLE"
