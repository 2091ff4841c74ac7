"""Whatever anybody sends is a playbook or a refusal, never an accident."""

from collections.abc import Set

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from noetl_core.canonical import encode
from noetl_core.errors import PlaybookInvalid
from noetl_core.playbook.expressions import TemplateFailed, check_condition, check_syntax, evaluate_condition, render
from noetl_core.playbook.references import condition_paths, referenced_paths
from noetl_core.playbook.selection import control_paths
from noetl_core.playbook.support import EVERYTHING, RELEASE
from noetl_core.playbook.validate import parse_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"
WORDS = [
    *("apiVersion", "kind", "metadata", "name", "path", "workload", "executor", "profile", "spec", "entry_step"),
    *("final_step", "no_next_is_error", "workflow", "step", "tool", "python", "noop", "http", "code", "code_b64"),
    *("libs", "input", "args", "result", "next", "arcs", "when", "mode", "inclusive", "set", "loop", "policy"),
    *("failure", "fail_fast", "timeout", "keychain", "a", "b", "c", "<<", "{{ a }}", "{{ a b", "{% if %}", "0x1F"),
    *("rules", "then", "else", "do", "jump", "to", "retry", "attempts", "delay", "paginate", "by", "rate_limit"),
    *("stream", "output", "select", "store", "admit", "allow", "in", "cursor", "claim", "iterator", "frame", "reduce"),
    *("from", "partitions", "max_in_flight", "parallel", "fanout", "failure_budget", "count", "share", "engine", "on"),
    *("workbook", "playbook", "return_step", "postgres", "shell", "cmds", "spark", "sql", "auth", "task", "url", "kv"),
]
YAML_PIECES = [
    *(": ", "- ", "\n", "\n  ", "\n    ", "[", "]", "{", "}", ", ", "&a ", "*a", "!!str ", "!x ", "|\n  ", ">\n  "),
    *('"', "'", "#", "---\n", "...\n", "%", "? ", "@", "`", "\t", "~", "1", "-1.5e3", "\\", "é", "\u2028", "\x85"),
]
TEMPLATE_PIECES = [
    *(
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{# ",
        " #}",
        "if ",
        "endif",
        "for x in ",
        "endfor",
        "set x = ",
        "a",
        "b.c",
        "[",
        "]",
    ),
    *(
        "(",
        ")",
        "|",
        "tojson",
        "default(1)",
        " + ",
        " * ",
        " ** ",
        " ~ ",
        "'t'",
        "9",
        "1e9",
        ".",
        ",",
        " is ",
        "defined",
    ),
    *("not ", " and ", " == ", " in ", "range(9)", "'%s' % ", "none", "macro m()", "endmacro", "\n", "-", "x", "raw"),
]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(WORDS) | st.text()
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=40,
)


def parse(document: str | bytes) -> None:
    parse_with(document, RELEASE)
    parse_with(document, EVERYTHING)


def parse_with(document: str | bytes, supported: Set[str]) -> None:
    try:
        playbook, warnings = parse_playbook(document, supported=supported)
    except PlaybookInvalid as refused:
        assert refused.problems
        assert all(problem.code.startswith("playbook.") and problem.message for problem in refused.problems)
    else:
        assert playbook.entry_step in playbook.steps
        encode([dict(playbook.workload), *(dict(step.input) for step in playbook.steps.values())])
        for step in playbook.steps.values():
            assert step.tasks
            assert step.tool == step.tasks[0].tool
            control_paths(playbook, step.name)
        assert all(warning.code.startswith("playbook.") for warning in warnings)


@given(st.text())
@settings(deadline=None, derandomize=True)
def test_any_text_is_a_playbook_or_a_refusal(text: str) -> None:
    parse(text)
    parse(HEAD + text)


@given(st.binary())
@settings(deadline=None, derandomize=True)
def test_any_bytes_are_a_playbook_or_a_refusal(data: bytes) -> None:
    parse(data)
    parse(HEAD.encode() + data)


@given(st.lists(st.sampled_from(YAML_PIECES + WORDS), max_size=60).map("".join))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_anything_that_looks_like_yaml_is_a_playbook_or_a_refusal(text: str) -> None:
    parse(text)
    parse(HEAD + "workflow:\n- " + text)


@given(documents)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize=True)
def test_any_values_in_any_place_are_a_playbook_or_a_refusal(value: object) -> None:
    import yaml

    parse(yaml.safe_dump(value))
    parse(HEAD + yaml.safe_dump({"workflow": value}))
    parse(HEAD + yaml.safe_dump({"workflow": [value, {"step": "a", "tool": value, "next": value}]}))


@given(st.lists(st.sampled_from(TEMPLATE_PIECES), max_size=25).map("".join))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_any_template_has_a_value_or_fails_by_name(text: str) -> None:
    names: dict[str, object] = {"a": 3, "b": {"c": [1, "t"]}}
    referenced_paths(text)
    condition_paths(text)
    try:
        encode([render(text, names)])
    except TemplateFailed as failure:
        assert failure.reason
    else:
        assert check_syntax(text) is None
    try:
        evaluate_condition(text, names)
    except TemplateFailed:
        pass
    else:
        assert check_condition(text) is None


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "document",
    [
        "[" * 1_000_000,
        "{" * 1_000_000,
        "- " * 500_000,
        "? " * 500_000,
        "a: 1\n" * 200_000,
        '"' + "x\n" * 500_000,
        "--- \n" * 200_000,
        "\t" * 1_000_000,
        "[" + "1," * 500_000 + "1]",
        HEAD + "workflow:\n" + "- {step: a, tool: {kind: pyton}}\n" * 9_999,
        HEAD + "workflow:\n" + "".join(f"- {{step: s{i}, next: t{i}}}\n" for i in range(9_999)),
        HEAD + "workflow: [{step: a, tool: {kind: noop, result: '{{ " + "(" * 200_000 + "'}}]",
        HEAD + "workflow: [{step: a, tool: [" + "{kind: noop, name: x}," * 40_000 + "]}]",
        HEAD + "workflow: [{step: a, next: {arcs: [" + "{step: b}," * 80_000 + "]}}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, spec: {policy: {rules: [" + "{do: x}," * 80_000 + "]}}}}]",
        HEAD + "workflow: [{step: a, set: {" + "".join(f"a..{i}: 1, " for i in range(60_000)) + "}}]",
        HEAD + "workbook: [" + "{name: a, tool: {kind: workbook, task: a}}," * 20_000 + "]\nworkflow: [{step: a}]",
        HEAD
        + "workbook: ["
        + "".join(f"{{name: t{i}, tool: {{kind: workbook, task: t{i + 1}}}}}," for i in range(9_000))
        + "]\nworkflow: [{step: a, tool: {kind: workbook, task: t0}}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, result: '{{ 1" + "+1" * 100_000 + " }}'}}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, result: '" + "{% if 1 %}" * 20_000 + "'}}]",
    ],
    ids=lambda document: repr(document[-12:]),
)
def test_documents_made_to_hurt_are_refused_soon(document: str) -> None:
    with pytest.raises(PlaybookInvalid):
        parse_playbook(document, supported=EVERYTHING)
