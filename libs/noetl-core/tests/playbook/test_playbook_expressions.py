from types import MappingProxyType

import pytest
from noetl_core.playbook.expressions import (
    TemplateFailed,
    check_condition,
    check_syntax,
    evaluate_condition,
    render,
)

NAMES: dict[str, object] = {
    "n": 5,
    "zero": 0,
    "empty": None,
    "text": "word",
    "rows": [{"id": 1, "tag": "a"}, {"id": 2, "tag": "b"}],
    "box": {"items": [1, 2], "keys": "k", "deep": {"x": {"y": 7}}, "404": "lost", "<": "&"},
}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("plain {text}", "plain {text}"),
        ("{{ n }}", 5),
        ("{{n}}\n", 5),
        (" {{ n }}", " 5"),
        ("{{ n }}{{ n }}", "55"),
        ("{# why #}{{ n }}", 5),
        ("{{ '5' }}", "5"),
        ("{{ rows }}", [{"id": 1, "tag": "a"}, {"id": 2, "tag": "b"}]),
        ("{{ true }}", True),
        ("{{ (1, 2) }}", [1, 2]),
        ("n={{ n }}, e={{ empty }}, u={{ nobody }}.", "n=5, e=, u=."),
        ("{% if n > 3 %}big{% else %}small{% endif %}", "big"),
        ("{{ 'a' ~ empty ~ nobody ~ 1 }}", "a1"),
        ("{{ box.deep['x'].y }}", 7),
        ("{{ box.items }}", [1, 2]),
        ("{{ box.keys }}", "k"),
        ("{{ box.deep.items() | list }}", [["x", {"y": 7}]]),
        ("{{ box.deep.values() }}", [{"y": 7}]),
        ("{{ box['values'] }}", None),
        ("{{ box[404] }}", "lost"),
        ("{{ rows[0].id }}", 1),
        ("{{ rows[-1].id }}", 2),
        ("{{ rows[7].id }}", None),
        ("{{ rows.0.id }}", 1),
        ("{{ rows[:1] }}", [{"id": 1, "tag": "a"}]),
        ("{{ text[0] }}", "w"),
        ("{{ text[-1] }}", "d"),
        ("{{ text[99] }}", None),
        ("{{ text.upper() }}", "WORD"),
        ("{{ text.replace('w', 'l').center(6, '-') }}", "-lord-"),
        ("{{ ', '.join(['a', none, 'b']) }}", "a, , b"),
        ("{{ '{:>5}|{x}'.format(n, x=1) }}", "    5|1"),
        ("{{ '%s-%03d' % ('a', 5) }}", "a-005"),
        ("{{ '%s-%03d' | format('a', 5) }}", "a-005"),
        ("{{ rows | map(attribute='id') | sum }}", 3),
        ("{{ rows | sum(attribute='id', start=10) }}", 13),
        ("{{ rows | map(attribute='tag') | join('+') }}", "a+b"),
        ("{{ rows | join('+', attribute='tag') }}", "a+b"),
        ("{{ rows | selectattr('id', 'gt', 1) }}", [{"id": 2, "tag": "b"}]),
        ("{{ rows | groupby('tag') | map(attribute='grouper') | list }}", ["a", "b"]),
        ("{{ (rows | groupby('tag') | first).list | length }}", 1),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ dict(a=1) }}", {"a": 1}),
        ("{{ {1: 'a', none: 'b', true: 'c'} }}", {"1": "c", "null": "b"}),
        ("{{ 7 // 2 - 1 }}", 2),
        ("{{ 2 ** 10 }}", 1024),
        ("{{ 2 ** -1 }}", 0.5),
        ("{{ [1] + [2] }}", [1, 2]),
        ("{{ 'ab' * 2 }}", "abab"),
        ("{{ text | safe }}", "word"),
        ("{% for r in rows %}{{ loop.index }}{{ r.tag }}{% endfor %}", "1a2b"),
        ("{% set ns = namespace(t=0) %}{% for r in rows %}{% set ns.t = ns.t + r.id %}{% endfor %}{{ ns.t }}", "3"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}", "<1>"),
        ("{% for x in 'a,b'.split(',') if x != 'a' %}{{ x }}{% endfor %}", "b"),
    ],
)
def test_a_template_has_the_value_that_the_language_says(template: str, value: object) -> None:
    rendered = render(template, NAMES)

    assert rendered == value
    assert type(rendered) is type(value)


def test_maps_and_lists_are_rendered_inside_and_their_keys_are_literal() -> None:
    value = {"{{ n }}": ["{{ n }}", {"x": "{{ text }}!", "y": 1.5}], "z": None, "t": ("{{ n }}",)}

    assert render(value, NAMES) == {"{{ n }}": [5, {"x": "word!", "y": 1.5}], "z": None, "t": [5]}


def test_a_rendered_text_is_not_rendered_again() -> None:
    assert render("{{ x }}", {"x": "{{ n }}", "n": 5}) == "{{ n }}"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("nobody", None),
        ("nobody.a.b['c'][0]", None),
        ("empty.a.b", None),
        ("[nobody, {'x': nobody}]", [None, {"x": None}]),
        ("nobody == nobody", False),
        ("nobody == none", False),
        ("nobody != nobody", True),
        ("nobody < 1", False),
        ("nobody >= 1", False),
        ("1 < nobody", False),
        ("nobody > nobody", False),
        ("not nobody", True),
        ("nobody is defined", False),
        ("nobody | length", 0),
        ("nobody | list", []),
        ("1 in nobody", False),
        ("nobody in [1]", False),
        ("nobody | upper", ""),
        ("box[nobody]", None),
        ("'x' if nobody else 'y'", "y"),
        ("'x' if nobody", None),
    ],
)
def test_undefined_is_empty_unequal_and_unordered(expression: str, value: object) -> None:
    assert render(f"{{{{ {expression} }}}}", NAMES) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("empty | default(3)", 3),
        ("nobody | default(3)", 3),
        ("zero | default(3)", 0),
        ("zero | d(3, true)", 3),
        ("box | tojson | length > 0", True),
        ("{'b': '<é>', 'a': nobody} | tojson", '{"a": null, "b": "<é>"}'),
        ("[1] | tojson(indent=1)", "[\n 1\n]"),
        ("range(2) | tojson", "[0, 1]"),
        ("'12' | int", 12),
        ("'ff' | int(base=16)", 255),
        ("'1.9' | int", 1),
        ("'x' | int", 0),
        ("'x' | int(7)", 7),
        ("none | int", 0),
        ("nobody | int(4)", 4),
        ("[1] | int", 0),
        ("(1e308 * 10) | int(3)", 3),
        ("'[1, {\"a\": null}]' | fromjson", [1, {"a": None}]),
        ("nobody | fromjson", None),
        ("'hé' | b64encode", "aMOp"),
        ("{'a': 1} | b64encode | b64decode", '{"a": 1}'),
        ("'aMOp' | b64decode", "hé"),
    ],
)
def test_the_languages_own_filters(expression: str, value: object) -> None:
    assert render(f"{{{{ {expression} }}}}", NAMES) == value


def test_now_is_what_the_caller_says_and_only_then() -> None:
    assert render("{{ now() }}", {}, now="2024-05-01T00:00:00Z") == "2024-05-01T00:00:00Z"
    assert evaluate_condition("now() > '2024'", {}, now="2025")
    with pytest.raises(TemplateFailed, match="not available"):
        render("{{ now() }}", {})


def test_names_of_the_caller_win_over_functions() -> None:
    assert render("{{ range }}", {"range": 3}) == 3
    assert render("{{ now }}", {"now": "later"}, now="x") == "later"


@pytest.mark.parametrize(
    "expression",
    [
        "none + 1",
        "nobody + 1",
        "nobody * 2",
        "none > 1",
        "'a' + 1",
        "1 / 0",
        "n()",
        "nobody()",
        "box.nomethod()",
        "rows | map('nofilter') | list",
        "'x' | fromjson",
        "5 | fromjson",
        "'NaN' | fromjson",
        "'%' | b64decode",
        "'nan' | float",
        "1e308 * 10",
        "range",
        "[range]",
        "rows | batch('x')",
        "{[1]: 2}",
        "{rows: 2}",
        "'%d' % 'x'",
        "'{.real}'.format(5)",
        "'%s %s' | format(1, a=2)",
        "box[[1]]",
        "box[1.5]",
        "(-8) ** 0.5",
    ],
)
def test_what_has_no_value_is_an_error_and_never_false(expression: str) -> None:
    with pytest.raises(TemplateFailed):
        evaluate_condition(expression, NAMES)


def test_a_failure_names_expression_line_and_place() -> None:
    with pytest.raises(TemplateFailed) as failure:
        render({"a": [{"b": "first line\n{{ none + 1 }}"}]}, {})

    assert failure.value.code == "template.error"
    assert failure.value.expression == "first line\n{{ none + 1 }}"
    assert failure.value.line == 2
    assert failure.value.path == "a[0].b"
    assert failure.value.facts["path"] == "a[0].b"
    assert "unsupported operand" in failure.value.reason


def test_a_long_expression_is_shortened_in_the_message_only() -> None:
    template = "{{ none + 1 }}" + "x" * 1000

    with pytest.raises(TemplateFailed) as failure:
        render(template, {})

    assert len(failure.value.message) < 400
    assert failure.value.expression == template


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        (True, True),
        (False, False),
        ("", False),
        ("  ", False),
        ("n == 5", True),
        ("{{ n == 5 }}", True),
        ("{{ n == 6 }}", False),
        ("nobody", False),
        ("text", True),
        ("box", True),
        ("zero", False),
        ("0.0", False),
        ("empty", False),
        ("[]", False),
        ("{}", False),
        ("true", True),
        ("not nobody", True),
        ("'No'", False),
        ("'OFF'", False),
        ("'null'", False),
        ("'[]'", False),
        ("'0'", False),
        ("'0.0'", True),
        ("'yes'", True),
        ("{% if n > 3 %}true{% else %}false{% endif %}\n", True),
        ("{% if n > 9 %}true{% else %}false{% endif %}\n", False),
        ("result: {{ n }}", True),
        ("rows | selectattr('id', 'gt', 5)", False),
        ("rows | selectattr('id', 'gt', 1)", True),
        ("box['}}'] == '{' ~ '{'", False),
    ],
)
def test_a_condition_holds_or_not(condition: str | bool, met: bool) -> None:
    assert evaluate_condition(condition, NAMES) is met


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{{ a", 1),
        ("x\n\n{{ a b }}", 3),
        ("{% if a %}", 1),
        ("{{ a | nothing }}", 1),
        ("{{ a is nothing }}", 1),
        ("{% include 'x' %}", 1),
        ("{% import 'x' as y %}", 1),
        ("{% from 'x' import y %}", 1),
        ("{% extends 'x' %}", 1),
        ("{% block x %}{% endblock %}", 1),
        ("{% for x in a recursive %}{% endfor %}", 1),
        ("{{ " + "9" * 5000 + " }}", 1),
        ("{{ " + "(" * 5000, 1),
        ("{{ 1" + "+1" * 5000 + " }}", 1),
        ("{{ a }}" + "x" * 300_000, 1),
        ("{% for x in a %}" * 12 + "{% endfor %}" * 12, 1),
    ],
)
def test_bad_syntax_is_found_without_evaluating_anything(text: str, line: int) -> None:
    problem = check_syntax(text)

    assert problem is not None
    assert problem[1] == line
    with pytest.raises(TemplateFailed):
        render(text, {})


def test_good_syntax_and_plain_text_have_no_problem() -> None:
    assert check_syntax("{{ a.b | default('x') }} {% if c %}{% endif %}") is None
    assert check_syntax("no template } { here") is None
    assert check_syntax("{{ 'C:\\d' }}") is None
    assert check_condition("a and b") is None
    assert check_condition("{{ a and b }}") is None
    assert check_condition("") is None


@pytest.mark.parametrize("condition", ["a b", "a ==", "{{ a", "a }} b", "if a", ")"])
def test_bad_conditions_are_found(condition: str) -> None:
    assert check_condition(condition) is not None


@pytest.mark.parametrize(
    "template",
    [
        "{{ " + " and ".join(["n"] * 59) + " }}",
        "{{ n" + "|string" * 58 + " }}",
        "{{ box" + ".b" * 58 + " }}",
        "{{ " + "[" * 40 + "n" + "]" * 40 + " }}",
        "{% if n %}" * 58 + "x" + "{% endif %}" * 58,
        "{% for r in rows[:1] %}" * 10 + "x" + "{% endfor %}" * 10,
    ],
)
def test_every_template_whose_syntax_is_accepted_can_be_compiled(template: str) -> None:
    assert check_syntax(template) is None
    render(template, NAMES)


def test_chance_decides_where_the_caller_brings_one_and_nowhere_else() -> None:
    assert render("{{ xs | random }}", {"xs": [1, 2, 3]}, chance=lambda: 0.5) == 2
    assert render("{{ xs | random }}", {"xs": [1, 2, 3]}, chance=lambda: 1.0) == 3
    assert render("{{ xs | random }}", {"xs": []}, chance=lambda: 0.0) is None
    assert evaluate_condition("xs | random == 1", {"xs": [1, 2]}, chance=lambda: 0.0)
    with pytest.raises(TemplateFailed, match="random is not available in control expressions"):
        render("{{ xs | random }}", {"xs": [1, 2, 3]})


def test_what_makes_too_much_text_says_how_much_is_allowed_and_where_it_stands() -> None:
    with pytest.raises(TemplateFailed, match=r"longer than 1048576 characters: .* in command") as refusal:
        render("{{ text }}{{ text }}", {"text": "x" * 600_000}, path="command")

    assert refusal.value.code == "template.error"
    assert refusal.value.path == "command"


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{% set n = n + 1 %}{{ n }}", "6"),
        ("{% for row in rows %}{{ row.id }}{{ n }}{% endfor %}", "1525"),
        (
            "{% set s = namespace(n=0) %}{% for row in rows %}{% set s.n = s.n + row.id %}{% endfor %}{{ s.n }}",
            "3",
        ),
        ("{% macro twice(a) %}{{ a }}{{ n }}{% endmacro %}{{ twice(text) }}", "word5"),
        ("{% with m = n %}{{ m }}{{ text }}{% endwith %}", "5word"),
        ("{{ rows | selectattr('id', 'gt', zero + 1) | map(attribute='tag') | list }}", ["b"]),
        ("{{ n if nobody is not defined else zero }}", 5),
        ("{{ loop }}{{ n }}", "5"),
    ],
)
def test_a_template_finds_all_names_that_it_reads_wherever_it_does(template: str, value: object) -> None:
    assert render(template, {**NAMES, "unread": object()}) == value


def test_what_one_rendering_has_seen_is_not_there_for_the_next() -> None:
    template = "{{ n }}{{ mine }}"

    assert render(template, {"n": 1, "mine": "a"}, now="then") == "1a"
    assert render(template, {"n": 2}) == "2"


def test_a_function_that_is_written_out_says_nothing_of_the_names() -> None:
    assert "hidden" not in str(render("<{{ now }}{{ range }}>", {"secret": "hidden"}, now="then"))


def test_names_need_be_no_dict_and_only_those_that_are_read_are_asked_for() -> None:
    class Asked(dict[str, object]):
        def __getitem__(self, name: str) -> object:
            assert name in {"n", "text"}
            return super().__getitem__(name)

    assert render("{{ text }} {{ n }}", MappingProxyType(Asked(NAMES))) == "word 5"
