"""Templates that only put values into text: the short way gives what the long one gives, or nothing."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from noetl_core.playbook import expressions
from noetl_core.playbook.expressions import MAX_TEXT_CHARACTERS, TemplateFailed, render
from noetl_core.playbook.filters import json_line
from noetl_core.playbook.plain import plain
from noetl_core.playbook.shortcuts import UNSURE, Shortcut, shortcut_of
from noetl_core.playbook.syntax import has_template, parse_template
from noetl_core.playbook.views import CallView, NotInView, RawView, ResultView, StepView, View, WithheldView

NAMES = ("a", "b", "now", "range", "dict", "self")
KEYS = ("data", "b", "items", "result", "0", "get")

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["{{ a }}", "é\ud800"])
)
data = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4),
        st.dictionaries(st.integers(0, 3) | st.booleans() | st.none() | st.sampled_from(KEYS), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)
views = st.one_of(
    data,
    st.builds(StepView, data),
    st.builds(ResultView, data),
    st.builds(RawView, data),
    st.builds(lambda result: CallView(envelope={"status": "ok", "meta": {"attempt": 1}}, result=result), data),
    st.just(WithheldView("it")),
    st.builds(lambda result: {"data": StepView(result), "b": WithheldView("this")}, data),
)
chains = st.builds(
    lambda name, keys, spelled: name + "".join(f".{key}" if spelled else f"['{key}']" for key in keys),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from([key for key in KEYS if key != "0"]), max_size=3),
    st.booleans(),
)
outputs = st.builds(
    lambda chain, rest: f"{{{{ {chain}{rest} }}}}",
    chains,
    st.sampled_from(["", "", " | tojson", " | tojson(2)", " | length", " ~ 'x'", " + 1", " | default('-')"]),
)
templates = st.lists(outputs | st.text("xyz '\n$", max_size=6) | st.just("{# no #}"), min_size=1, max_size=5).map(
    "".join
)


def told(template: str, names: dict[str, Any], max_text: int, *, is_short: bool) -> tuple[str, Any]:
    scope = expressions._Scope(names, None, None, max_text)
    try:
        if is_short:
            value = render(template, names, max_text=max_text, path="p")
        else:
            value = expressions._evaluate_all(template, scope, "p", is_condition=False)
    except TemplateFailed as failure:
        return type(failure).__name__, failure.message
    return type(value).__name__, repr(value)


@given(templates, st.dictionaries(st.sampled_from(NAMES), views), st.sampled_from([0, 8, 100, MAX_TEXT_CHARACTERS]))
@example("{{ a.b }}", {"a": {"b": "x"}}, MAX_TEXT_CHARACTERS)
@example("x{{ a.data | tojson }}", {"a": StepView({"b": [1.5, None, True]})}, MAX_TEXT_CHARACTERS)
@example("x{{ a | tojson }}", {"a": {2: "x", 10: "y"}}, MAX_TEXT_CHARACTERS)
@example("x{{ a }}", {"a": 10**5000}, MAX_TEXT_CHARACTERS)
@example("x{{ self.b }}", {"self": {"b": "x"}}, MAX_TEXT_CHARACTERS)
def test_rendering_is_the_same_with_and_without_shortcuts(template: str, names: dict[str, Any], max_text: int) -> None:
    if not has_template(template):
        return

    assert told(template, names, max_text, is_short=True) == told(template, names, max_text, is_short=False)


@given(data)
def test_json_of_a_template_is_that_of_python(value: object) -> None:
    try:
        known = plain(value)
    except ValueError:  # not a number
        return

    assert json_line(known) == json.dumps(known, sort_keys=True, ensure_ascii=False)


def short(template: str) -> Shortcut:
    shortcut = shortcut_of(parse_template(template))
    assert shortcut is not None
    return shortcut


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ web }}/items/{{ iter.n }}", "http://x/items/7"),
        ("{{ iter.n }}", 7),
        ("({{ fetch.data | tojson }}, {{ nothing }})", '({"a": [1, "é"]}, )'),
        ("{{ fetch.data | tojson }}", '{"a": [1, "é"]}'),
        ("{{ fetch.data.a | tojson }}{{ is_it }}{{ part }}", '[1, "é"]True0.5'),
    ],
)
def test_what_rows_mostly_render_takes_the_short_way(template: str, value: object) -> None:
    names = {
        "web": "http://x",
        "iter": {"n": 7},
        "fetch": StepView({"data": {"a": [1, "é"]}}),
        "nothing": None,
        "is_it": True,
        "part": 0.5,
    }

    assert short(template).value(names, max_text=MAX_TEXT_CHARACTERS) == value


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"a": None},
        {"a": {}},
        {"a": {"b": {}}},
        {"a": "text"},
        {"a": [1]},
        {"a": {"b": "x" * 70_000}},
        {"a": WithheldView("a")},
        {"a": {"b": {1, 2}}},
    ],
)
def test_where_it_is_not_sure_the_template_is_evaluated(names: dict[str, Any]) -> None:
    assert short("{{ a.b }}").value(names, max_text=MAX_TEXT_CHARACTERS) is UNSURE


@pytest.mark.parametrize(
    "template",
    [
        "{{ a() }}",
        "{{ a | length }}",
        "{{ a + 1 }}",
        "{% if a %}x{% endif %}",
        "{{ a | tojson(2) }}",
        "{{ a[b] }}",
        "{{ 1 }}",
        "{{ self.a }}",
    ],
)
def test_whatever_does_more_has_no_shortcut(template: str) -> None:
    assert shortcut_of(parse_template(template)) is None


def test_a_view_is_asked_for_no_more_than_the_template_would() -> None:
    class Guarded(View):
        def lookup(self, key: object) -> object:
            return 1

        def whole(self) -> object:
            raise NotInView("nobody needs it")

    assert render("{{ a.b }} and {{ a.c }}", {"a": Guarded()}) == "1 and 1"


@pytest.mark.parametrize("template", ["{{ a }}", "{{ a | tojson }}"])
def test_a_text_that_becomes_too_long_is_not_put_together_first(template: str) -> None:
    names = {"a": "x" * MAX_TEXT_CHARACTERS}
    tracemalloc.start()
    try:
        with pytest.raises(TemplateFailed):
            render(template * 300, names)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 30 * MAX_TEXT_CHARACTERS
