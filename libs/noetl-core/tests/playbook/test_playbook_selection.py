from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonValue
from noetl_core.playbook.expressions import TemplateFailed, ValueWithheld, evaluate_condition, render
from noetl_core.playbook.model import Arc, Next, Playbook, Step, Tool, ToolKind
from noetl_core.playbook.selection import (
    control_paths,
    nest,
    parse_pointer,
    pointer,
    result_view,
    select_scalars,
)
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.playbook.views import DataView, OutputView, StepView


def playbook(conditions: Mapping[str, list[str]]) -> Playbook:
    steps = {
        name: Step(
            name=name,
            tool=Tool(kind=ToolKind.NOOP),
            next=Next(arcs=tuple(Arc(step=name, when=when) for when in whens)),
        )
        for name, whens in conditions.items()
    }
    return Playbook(name="p", path="p", entry_step=next(iter(steps)), steps=steps)


@pytest.mark.parametrize(
    ("own", "others", "paths"),
    [
        ("{{ output.data.a.b }}", "true", {("a", "b")}),
        ("output.a > 1", "true", {("a",)}),
        ("output[0].x", "true", {("0", "x")}),
        ("result.a.b", "true", {("a", "b")}),
        ("result", "true", {()}),
        ("output.data", "true", {()}),
        ("output", "true", {()}),
        ("event.payload.a", "true", {("a",)}),
        ("event.name", "true", set()),
        ("output.status == 'ok' and output.error.kind and output.meta.attempt", "true", set()),
        ("x.a.b", "true", {("a", "b")}),
        ("true", "x.a.b", {("a", "b")}),
        ("true", "steps.x.a", {("a",)}),
        ("true", "steps['x'].a", {("a",)}),
        ("true", "x.data.a", {("data", "a"), ("a",)}),
        ("true", "x.result.a", {("result", "a"), ("a",)}),
        ("true", "x.data", {("data",), ()}),
        ("true", "x", {()}),
        ("true", "steps | length", {()}),
        ("true", "steps.y.a", set()),
        ("true", "output.data.a", set()),
        ("true", "other", set()),
    ],
)
def test_the_parts_of_a_result_that_conditions_read_are_known(
    own: str, others: str, paths: set[tuple[str, ...]]
) -> None:
    assert control_paths(playbook({"x": [own], "y": [others]}), "x") == paths


@pytest.mark.parametrize(
    ("first", "second", "paths"),
    [
        ('set: {ctx.n: "{{ output.data.n }}"}', "", {("n",)}),
        ('set: {ctx: {n: {deep: ["{{ result.n.m }}"]}}}', "", {("n", "m")}),
        ('set: {n: "{{ x.a }}"}', "", {("a",)}),
        ("", 'set: {n: "{{ x.a }}", m: "{{ steps.x.b }}"}', {("a",), ("b",)}),
        ("", 'set: {n: "{{ output.a }}"}', set()),
        ("", 'spec: {policy: {admit: {rules: [{when: "x.a > 1", then: {allow: true}}]}}}', {("a",)}),
        ("", 'spec: {policy: {admit: {rules: [{when: "result.a", then: {allow: true}}]}}}', {("a",)}),
        ("", 'loop: {in: "{{ x.rows }}"}', {("rows",)}),
        ("", 'loop: {in: ["{{ x.first }}", {b: "{{ result.second }}"}]}', {("first",), ("second",)}),
        ("", 'loop: {in: [], spec: {mode: parallel, max_in_flight: "{{ x.width }}"}}', {("width",)}),
        ("", 'loop: {in: [], spec: {frame: {max_rows: "{{ x.size }}"}}}', {("size",)}),
        ("", 'reduce: {from: x, spec: {max_in_flight: "{{ x.width }}"}}', {("width",)}),
        ("", 'tool: {kind: noop, input: {a: "{{ x.a }}"}, set: {b: "{{ x.b }}"}}', set()),
        ("loop: {in: '{{ result.a }}'}", "", set()),
    ],
)
def test_every_control_expression_says_what_it_reads(first: str, second: str, paths: set[tuple[str, ...]]) -> None:
    loop = "" if "loop" in first else "loop: {in: []}, "
    book, _ = parse_playbook(
        f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: x}}
workflow:
- {{step: x, {loop}{first}{", " if first else ""}next: {{arcs: [{{step: y}}]}}}}
- {{step: y, {second}}}
""",
        supported=EVERYTHING,
    )

    assert control_paths(book, "x") == paths


def test_an_arc_that_sets_variables_says_what_it_reads() -> None:
    book, _ = parse_playbook(
        """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: x}
workflow:
- {step: x, next: {arcs: [{step: y, set: {n: "{{ output.data.n }} of {{ x.m }}"}}]}}
- {step: y, next: {arcs: [{step: x, set: {k: "{{ x.k }}", l: "{{ output.l }}"}}]}}
""",
        supported=EVERYTHING,
    )

    assert control_paths(book, "x") == {("n",), ("m",), ("k",)}
    assert control_paths(book, "y") == {("l",)}


def test_only_small_scalars_are_selected_and_the_rest_is_named() -> None:
    result: JsonValue = {
        "a": {"b": 1, "c": None, "d": False},
        "long": "x" * 1025,
        "short": "x" * 1024,
        "rows": [{"id": 7}],
        "a/b": {"~": "odd"},
        "secret": "not asked for",
    }
    paths = [
        *(("a", "b"), ("a", "c"), ("a", "d"), ("long",), ("short",), ("rows",), ("rows", "0", "id")),
        *(("rows", "9", "id"), ("a/b", "~"), ("missing",), ("a", "b", "deeper"), ("a",)),
    ]

    selected, unselected = select_scalars(result, paths)

    assert selected == {
        "/a/b": 1,
        "/a/c": None,
        "/a/d": False,
        "/short": "x" * 1024,
        "/rows/0/id": 7,
        "/a~1b/~0": "odd",
    }
    assert unselected == ("/a", "/long", "/rows")


def test_what_is_below_a_text_is_left_to_the_text() -> None:
    selected, unselected = select_scalars(
        {"a": "Ada", "b": {"c": "x" * 1025}, "n": 5}, [("a", "0"), ("b", "c", "1"), ("n", "0")]
    )

    assert selected == {"/a": "Ada"}
    assert unselected == ("/b/c/1",)


def test_paths_are_also_sought_below_data() -> None:
    selected, unselected = select_scalars({"data": {"a": 1}, "a": 2}, [("a",)])

    assert selected == {"/data/a": 1, "/a": 2}
    assert unselected == ("/data",)


def test_a_scalar_result_is_selected_whole() -> None:
    assert select_scalars("done", [()]) == ({"": "done"}, ())
    assert select_scalars({"data": 5}, [()]) == ({"/data": 5}, ("",))
    assert select_scalars([1], [()]) == ({}, ("",))


def test_nothing_is_selected_when_nothing_is_asked() -> None:
    assert select_scalars({"data": {"a": 1}}, []) == ({}, ())


def test_selected_scalars_nest_again() -> None:
    assert nest({"/a/b": 1, "/a/c": 2, "/rows/0/id": 7, "/a~1b": 3}) == {
        "a": {"b": 1, "c": 2},
        "rows": {"0": {"id": 7}},
        "a/b": 3,
    }
    assert nest({}) == {}
    assert nest({"": 5}) == {}
    assert nest({"/a": 1, "/a/b": 2}) == {"a": 1}
    assert render("{{ rows[0].id }}", nest({"/rows/0/id": 7})) == 7


@given(st.lists(st.text(max_size=5), max_size=4).map(tuple))
@settings(deadline=None, derandomize=True)
def test_pointers_come_back_as_the_path_they_were(path: tuple[str, ...]) -> None:
    assert parse_pointer(pointer(path)) == path


def evaluated(
    book: Playbook, when: str, result: JsonValue, variables: Mapping[str, JsonValue], *, sparse: bool
) -> bool | str:
    seen: object = result
    if sparse:
        paths = control_paths(book, "x")
        seen = result_view(*select_scalars(result, paths), paths)
    names: dict[str, object] = {
        "result": DataView(seen),
        **variables,
        "x": StepView(seen),
        "steps": {"x": StepView(seen)},
        "ctx": variables,
        "output": OutputView(envelope={"status": "ok"}, result=seen),
        "event": {"name": "call.done", "payload": DataView(seen)},
    }
    try:
        return evaluate_condition(when, names, now="2024")
    except ValueWithheld:
        return "withheld"
    except TemplateFailed:
        return "failed"


SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a", "no", "z" * 2000])
LEAVES = SCALARS | st.lists(SCALARS, max_size=2)
INNER = LEAVES | st.fixed_dictionaries({}, optional={"a": LEAVES, "b": LEAVES, "data": LEAVES, "get": SCALARS})
RESULTS = SCALARS | st.fixed_dictionaries(
    {}, optional={"a": INNER, "b": LEAVES, "data": INNER, "result": INNER, "rows": st.lists(INNER, max_size=2)}
)
VARIABLES = st.fixed_dictionaries(
    {"k": st.sampled_from(["a", "b", "data", "rows"]), "s": st.just("x")}, optional={"v": INNER, "a": SCALARS}
)
CONDITIONS = st.sampled_from(
    [
        *("output.data", "output.data.a", "output.a == 1", "output.data.a.b", "result.a", "result", "x", "x.a"),
        *("x.data.a", "x.result.a", "x.result", "steps.x.a", "steps['x'].data", "output[0]", "output.rows[0].a"),
        *("x.rows[-1].a", "x[k]", "output.data[k]", "steps[s].a", "output.data.rows | length > 1", "x.data.data.a"),
        *("output.data.get('a') == 1", "x.get('b', 1)", "output.data.a is defined", "x.rows is mapping"),
        *("x.a.upper() == 'A'", "{% set d = output.data %}{{ d.a }}", "output.status == 'ok' and x.b"),
        *("{% for r in x.rows %}{{ r.a }}{% endfor %}", "output | tojson", "v.a == 1", "ctx.v.a", "v"),
        *("range(3) | length == 3 and x.a", "event.payload.a", "event.name == 'call.done'", "a > 1", "x.keys()"),
        *("not x.a", "x.a == none", "x.a in [1, 2]", "ctx[k]", "now() > '2023' and x.b"),
    ]
)


@given(RESULTS, VARIABLES, CONDITIONS, CONDITIONS)
@settings(max_examples=1000, deadline=None, derandomize=True)
def test_routing_on_what_events_carry_never_differs_from_routing_on_everything(
    result: JsonValue, variables: dict[str, JsonValue], when: str, other: str
) -> None:
    book = playbook({"x": [when, other]})

    on_everything = evaluated(book, when, result, variables, sparse=False)
    on_events = evaluated(book, when, result, variables, sparse=True)

    assert on_events in {on_everything, "withheld"}


@pytest.mark.parametrize(
    ("when", "result", "met"),
    [
        ("output.data.risk > 1", {"risk": 1.2}, True),
        ("output.data.risk > 1", {"data": {"risk": 0.5}, "risk": 9}, False),
        ("output.data.missing", {"data": {"risk": 1}, "rows": [1]}, False),
        ("x.data.a", {"data": {"b": 1}, "a": 5}, False),
        ("x.data.a", {"b": 1, "a": 5}, True),
        ("x == 'Hello'", "Hello", True),
        ("x.data == 'Hello'", "Hello", True),
        ("result == 'Hello'", "Hello", True),
        ("output.data == 5", {"data": 5}, True),
        ("output.data.name.upper() == 'ADA'", {"name": "ada"}, True),
        ("output.rows[0].id == 7", {"rows": [{"id": 7}]}, True),
        ("x.get('flag')", {"flag": True}, True),
    ],
)
def test_ordinary_conditions_need_no_more_than_events_carry(when: str, result: JsonValue, met: bool) -> None:
    assert evaluated(playbook({"x": [when]}), when, result, {}, sparse=True) is met


def test_reading_what_is_too_large_for_an_event_says_so() -> None:
    book = playbook({"x": ["output.data.rows"]})
    paths = control_paths(book, "x")
    view = result_view(*select_scalars({"rows": [1]}, paths), paths)

    with pytest.raises(ValueWithheld, match="/rows is not a scalar") as withheld:
        evaluate_condition("x.rows", {"x": view})
    assert withheld.value.code == "template.error"


def test_reading_what_was_never_asked_for_says_so_too() -> None:
    view = result_view({}, (), frozenset())

    with pytest.raises(ValueWithheld, match="not selected"):
        evaluate_condition("x.rows", {"x": view})
