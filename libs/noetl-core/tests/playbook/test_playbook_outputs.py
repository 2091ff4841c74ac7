"""`output`: parts of results that are readable without loading them, and the view that stands for a large one."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_core.canonical import JsonValue, encode
from noetl_core.errors import PlaybookInvalid
from noetl_core.playbook.expressions import TemplateFailed, ValueWithheld, render
from noetl_core.playbook.large_results import LargeResult, LargeView, NotLoaded, compact_view
from noetl_core.playbook.model import OutputScope, Playbook
from noetl_core.playbook.outputs import Kept, Selection, kept_output, parse_path, seen
from noetl_core.playbook.references import handed_on
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.playbook.views import DataView, StepView

ROWS: list[JsonValue] = [{"id": number, "name": f"n{number}"} for number in range(5000)]
TABLE: dict[str, JsonValue] = {
    "status": "success",
    "rows": ROWS,
    "meta": {"page": 3, "more": {"next": "abc"}, "tags": ["x", "y"]},
    "long": "z" * 5000,
}


def playbook(yaml: str) -> tuple[Playbook, list[str]]:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
    parsed, warnings = parse_playbook(head + yaml, supported=EVERYTHING)
    return parsed, [problem.code for problem in warnings]


def view_of(result: JsonValue, kept: Kept | None = None) -> LargeView:
    kept = kept or Kept()
    body = encode(result)
    made = compact_view(result, ref="noetl://r", sha256="0" * 64, size_bytes=len(body), kept=kept)
    view = LargeView.of(result, made, kept)
    assert LargeView.from_json(view.to_json()) == view
    return view


def rendered(template: str, result: JsonValue, *, is_loaded: bool, kept: Kept | None = None) -> JsonValue:
    kept = kept or Kept()
    data: object = result if is_loaded else NotLoaded()
    shown = seen(LargeResult(view_of(result, kept), data), kept)
    return render(template, {"a": StepView(shown), "result": DataView(shown)})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("a.b.c", ("a", "b", "c")),
        ("rows[0].id", ("rows", "0", "id")),
        ("$.rows[12]", ("rows", "12")),
        ("$['a.b'].c", ("a.b", "c")),
        ('a["x y"][3]', ("a", "x y", "3")),
        ("[2].id", ("2", "id")),
        ("a-b.c d", ("a-b", "c d")),
    ],
)
def test_paths_are_written_with_dots_and_brackets(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", "$", "a..b", "a.", "rows[*].id", "rows[", "a]b", "a[-1]"])
def test_what_is_no_path_is_refused_at_registration(text: str) -> None:
    assert parse_path(text) is None
    if text:
        with pytest.raises(PlaybookInvalid, match="is not a path"):
            playbook(f"- {{step: a, tool: {{kind: noop}}, output: {{select: ['{text}']}}}}")


def test_the_view_of_a_table_tells_its_shape_and_small_parts() -> None:
    view = view_of(TABLE).view

    assert view["_ref"] == {"kind": "result_ref", "ref": "noetl://r", "store": "kv", "sha256": "0" * 64}
    assert view["_store"] == "kv"
    assert view["_size_bytes"] == len(encode(TABLE))
    assert str(view["_preview"]).startswith('{"long":"zzz')
    assert (view["row_count"], view["rows_count"], view["columns"]) == (5000, 5000, ["id", "name"])
    assert (view["status"], view["meta_page"], view["meta_more_next"], view["meta_tags_count"]) == (
        "success",
        3,
        "abc",
        2,
    )
    assert not {"rows", "meta", "long"} & set(view)
    assert len(encode(view)) < 16 * 1024


@pytest.mark.parametrize(
    ("size", "store"), [(10 * 1024, "memory"), (10 * 1024 + 1, "kv"), (1024 * 1024 - 1, "kv"), (1024 * 1024, "disk")]
)
def test_the_store_follows_from_the_size_unless_one_is_written(size: int, store: str) -> None:
    assert Kept().store_of(size) == store
    assert Kept(store="s3").store_of(size) == "s3"


def test_names_of_the_result_itself_are_never_replaced_by_those_of_the_view() -> None:
    view = view_of({"rows": [1] * 40_000, "rows_count": "mine", "meta": {"page": 1}, "meta_page": [2]}).view

    assert view["rows_count"] == "mine"
    assert "meta_page" not in view
    assert view["meta_page_count"] == 1


def test_a_view_is_small_however_wide_and_deep_the_result_is() -> None:
    wide: dict[str, JsonValue] = {f"field_{number}": "x" * 1000 for number in range(5000)}
    deep: JsonValue = {"leaf": 1}
    for _ in range(50):
        deep = {"below": deep, "list": [deep] * 2 if len(encode(deep)) < 10_000 else []}
    assert len(encode(view_of(wide).to_json())) < 32 * 1024
    assert len(view_of({"deep": deep, "rows": [1] * 40_000}).view) < 250


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.row_count }}", 5000),
        ("{{ a.rows_count }}", 5000),
        ("{{ steps.a.columns if steps else a.columns }}", ["id", "name"]),
        ("{{ a.meta_page }}", 3),
        ("{{ a.data.status }}", "success"),
        ("{{ result.status }}", "success"),
        ("{{ a._size_bytes > 1000 }}", True),
        ("{{ a.nothing is defined }}", False),
    ],
)
def test_small_parts_are_read_without_the_data(template: str, value: JsonValue) -> None:
    assert rendered(template, TABLE, is_loaded=False) == value
    assert rendered(template, TABLE, is_loaded=True) == value


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.rows[4999].id }}", 4999),
        ("{{ a.rows | length }}", 5000),
        ("{{ a.meta.page }}", 3),
        ("{{ a.long | length }}", 5000),
        ("{{ (a | length) }}", 4),
    ],
)
def test_other_fields_are_read_from_the_data_and_never_guessed_without_them(template: str, value: JsonValue) -> None:
    assert rendered(template, TABLE, is_loaded=True) == value
    with pytest.raises(ValueWithheld):
        rendered(template, TABLE, is_loaded=False)


@pytest.mark.parametrize("template", ["{{ a }}", "{{ a.data }}", "{{ result }}"])
@pytest.mark.parametrize("is_loaded", [True, False])
def test_the_whole_object_passes_the_view(template: str, is_loaded: bool) -> None:
    passed = rendered(template, TABLE, is_loaded=is_loaded)

    assert isinstance(passed, dict)
    assert passed["_ref"] == {"kind": "result_ref", "ref": "noetl://r", "store": "kv", "sha256": "0" * 64}
    assert "rows" not in passed


def test_a_large_list_passes_its_view_and_is_read_item_by_item() -> None:
    passed = rendered("{{ a }}", ROWS, is_loaded=False)

    assert isinstance(passed, dict)
    assert (passed["_count"], passed["columns"]) == (5000, ["id", "name"])
    assert rendered("{{ a[17].id }}", ROWS, is_loaded=True) == 17
    assert rendered("{{ a | length }}", ROWS, is_loaded=True) == 5000
    assert rendered("{% for x in a[:2] %}{{ x.name }}{% endfor %}", ROWS, is_loaded=True) == "n0n1"


def test_who_goes_through_the_data_gets_them_instead_of_the_view() -> None:
    names = {"a": StepView(LargeResult(view_of(ROWS), ROWS))}

    assert render("{{ a }}", names, wants_data=True) == ROWS
    assert isinstance(render("{{ a }}", names), dict)


SELECTING = Kept(
    selections=(
        Selection(path=("rows", "7", "id"), name="seventh"),
        Selection(path=("meta", "tags")),
        Selection(path=("nowhere",), name="none"),
        Selection(path=("rows",), name="all"),
    )
)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.seventh }}", 7),
        ("{{ a.rows[7].id }}", 7),
        ("{{ a.meta.tags }}", ["x", "y"]),
        ("{{ a.meta.tags[1] }}", "y"),
        ("{{ result.seventh }}", 7),
    ],
)
def test_selected_parts_are_read_without_the_data(template: str, value: JsonValue) -> None:
    assert rendered(template, TABLE, is_loaded=False, kept=SELECTING) == value
    assert rendered(template, TABLE, is_loaded=True, kept=SELECTING) == value


def test_a_selected_part_that_is_too_large_is_read_from_the_data() -> None:
    assert rendered("{{ a.all | length }}", TABLE, is_loaded=True, kept=SELECTING) == 5000
    assert rendered("{{ a.none is defined }}", TABLE, is_loaded=True, kept=SELECTING) is False
    with pytest.raises(TemplateFailed):
        rendered("{{ a.rows[8].id }}", TABLE, is_loaded=False, kept=SELECTING)


def test_a_small_result_has_the_selected_names_too_behind_its_own() -> None:
    kept = Kept(selections=(Selection(path=("x",), name="y"), Selection(path=("x",), name="own")))
    names: dict[str, Any] = {"a": StepView(seen({"data": {"x": 5}, "own": 6}, kept))}

    assert render("{{ [a.y, a.own] }}", names) == [5, 6]
    assert render("{{ a }}", names) == {"data": {"x": 5}, "own": 6}


def test_the_step_and_its_tool_may_both_say_how_a_result_is_kept() -> None:
    parsed, warnings = playbook(
        """
- step: a
  tool: {kind: noop, output: {select: [t], inline_max_bytes: 5, scope: step}}
  output: {select: [{path: s, as: x}], scope: permanent, store: {kind: object}}
  output_select: [older]
"""
    )
    kept = kept_output(parsed, "a")

    assert kept.selections == (Selection(path=("s",), name="x"), Selection(path=("older",)), Selection(path=("t",)))
    assert (kept.inline_max_bytes, kept.scope, kept.store) == (5, OutputScope.PERMANENT, "disk")
    assert warnings == ["playbook.older_form"]


def test_tasks_of_a_pipeline_select_from_their_own_results() -> None:
    parsed, warnings = playbook(
        """
- step: a
  tool:
  - {name: get, kind: noop, output: {select: [{path: id, as: first}], scope: step}}
  - {name: put, kind: noop}
"""
    )
    (selection,) = kept_output(parsed, "a").selections

    assert selection.find({"get": {"id": 1}}) == 1
    assert selection.find({"get": {"data": {"id": 2}}}) == 2
    assert kept_output(parsed, "a").scope is None
    assert warnings == ["playbook.unknown_key"], "what a task says about storing has no effect, and is told"


def test_a_called_workbook_task_brings_its_output_along() -> None:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
    workbook = "workbook: [{name: w, tool: {kind: noop, output: {select: [x]}}}]\n"
    parsed, _ = parse_playbook(
        head + workbook + "workflow: [{step: a, tool: {kind: workbook, task: w}}]", supported=EVERYTHING
    )

    assert kept_output(parsed, "a").paths == {("x",)}


def test_a_store_that_this_version_lacks_is_accepted_with_a_warning() -> None:
    _, warnings = playbook("- {step: a, tool: {kind: noop}, output: {store: {kind: s3}}}")
    _, none = playbook("- {step: a, tool: {kind: noop}, output: {store: {kind: auto}}}")

    assert (warnings, none) == (["playbook.store_kind"], [])


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        ("{{ a }}", ("a",)),
        ("{{a.b}}", ("a", "b")),
        ("{{ steps['a/b'].x }}", ("steps", "a/b", "x")),
        ("{{ a[k] }}", None),
        ("{{ a[-1] }}", None),
        ("{{ a | length }}", None),
        (" {{ a }}", None),
        ("{{ a }}{{ b }}", None),
        ("{{ a", None),
        ("a", None),
    ],
)
def test_what_a_text_hands_on_is_known_without_evaluating_it(text: str, chain: tuple[str, ...] | None) -> None:
    assert handed_on(text) == chain
