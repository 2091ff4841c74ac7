import base64
from collections.abc import Set

import pytest
from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.model import Arc, ArcMode, FailureMode, Playbook, Tool, ToolKind
from noetl_core.playbook.support import EVERYTHING, tool
from noetl_core.playbook.validate import parse_playbook

BARE = frozenset({tool(ToolKind.NOOP), tool(ToolKind.PYTHON)})
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"


def accepted(document: str) -> tuple[Playbook, tuple[Problem, ...]]:
    return parse_playbook(HEAD + document, supported=EVERYTHING)


def problems(document: str, head: str = HEAD, *, supported: Set[str] = EVERYTHING) -> list[Problem]:
    with pytest.raises(PlaybookInvalid) as refused:
        parse_playbook(head + document, supported=supported)
    return list(refused.value.problems)


def codes_and_paths(found: list[Problem] | tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.code.removeprefix("playbook."), problem.path) for problem in found]


def test_hello_world_is_read() -> None:
    playbook, warnings = parse_playbook(
        """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, owner: ada}
workload: {who: world}
workflow:
- step: greet
  tool: {kind: python, input: {who: "{{ who }}"}, code: 'result = "Hello, " + who'}
"""
    )

    assert warnings == ()
    assert (playbook.name, playbook.path, playbook.entry_step) == ("hello", "hello", "greet")
    assert playbook.metadata == {"name": "hello", "owner": "ada"}
    assert playbook.workload == {"who": "world"}
    assert playbook.steps["greet"].tool == Tool(
        kind=ToolKind.PYTHON, input={"who": "{{ who }}"}, config={"code": 'result = "Hello, " + who'}
    )
    assert playbook.steps["greet"].next.arcs == ()


def test_everything_that_this_version_runs_is_read() -> None:
    playbook, warnings = accepted(
        """
executor:
  profile: local
  spec: {entry_step: start, final_step: clean, no_next_is_error: true}
keychain: []
workflow:
- step: clean
  desc: at the end
  tool: {kind: noop}
- step: start
  input: {a: 1, b: 2}
  spec: {policy: {failure: {mode: fail_fast}}}
  tool:
    kind: python
    name: label
    input: {b: "{{ x }}"}
    libs: {np: numpy, sqrt: {from: math, import: sqrt}}
    code: result = 1
    spec: {timeout: 2.5, policy: {rules: []}}
  next:
    spec: {mode: all, on_no_match: quiet}
    arcs:
    - {step: other, when: "{{ output.data > 1 }}"}
    - {step: start, when: output.data == 0}
    - {step: other, when: false}
- step: other
  tool: {kind: noop, result: {n: "{{ a }}"}, timeout: 3}
"""
    )

    start = playbook.steps["start"]
    assert warnings == ()
    assert (playbook.entry_step, playbook.final_step, playbook.no_next_is_error) == ("start", "clean", True)
    assert start.failure_mode is FailureMode.FAIL_FAST
    assert start.merged_input() == {"a": 1, "b": "{{ x }}"}
    assert (start.tool.label, start.tool.timeout_seconds) == ("label", 2.5)
    assert start.tool.config["libs"] == {"np": "numpy", "sqrt": {"from": "math", "import": "sqrt"}}
    assert start.next.mode is ArcMode.INCLUSIVE
    assert start.next.arcs == (
        Arc(step="other", when="{{ output.data > 1 }}"),
        Arc(step="start", when="output.data == 0"),
        Arc(step="other", when=False),
    )
    assert playbook.steps["other"].tool.config == {"result": {"n": "{{ a }}"}}
    assert playbook.steps["other"].tool.timeout_seconds == 3.0
    assert playbook.steps["clean"].desc == "at the end"


def test_code_in_base64_becomes_code() -> None:
    encoded = base64.b64encode(b"result = 1").decode()

    playbook, _ = accepted(f"workflow: [{{step: a, tool: {{kind: python, code: x, code_b64: {encoded}}}}}]")

    assert playbook.steps["a"].tool.config == {"code": "result = 1"}


def test_every_problem_is_found_at_once_with_line_and_suggestion() -> None:
    found = problems(
        """
apiVersion: noetl.io/v3
kind: Playbok
metadata: {title: x}
executor: {profile: locl, spec: {entry_step: frist}}
workflow:
- step: first
  tool: {kind: pyton}
  next: {arcs: [{step: secnd}]}
- step: second
  tool: {kind: python}
- step: second
  tool: {kind: noop, timeout: -1}
- tool: {kind: noop}
""",
        head="",
    )

    assert [(p.code.removeprefix("playbook."), p.path, p.line, p.suggestion) for p in found] == [
        ("api_version", "apiVersion", 2, "write noetl.io/v2"),
        ("kind", "kind", 3, "write Playbook"),
        ("missing_field", "metadata.name", 4, None),
        ("invalid_field", "executor.profile", 5, "did you mean 'local'?"),
        ("unknown_step", "executor.spec.entry_step", 5, "did you mean 'first'?"),
        ("unknown_tool", "workflow[0].tool.kind", 8, "did you mean 'python'?"),
        ("unknown_step", "workflow[0].next.arcs[0].step", 9, "did you mean 'second'?"),
        ("missing_field", "workflow[1].tool.code", 11, None),
        ("duplicate_step", "workflow[2].step", 12, None),
        ("invalid_field", "workflow[2].tool.timeout", 13, None),
        ("missing_field", "workflow[3].step", 14, None),
    ]


def test_a_condition_with_a_syntax_error_is_found_even_where_nobody_can_get_to() -> None:
    found = problems(
        """workflow:
- {step: a, tool: {kind: noop}}
- step: lost
  tool: {kind: noop}
  next:
    arcs:
    - step: a
      when: |
        {{ x
           == == 1 }}
"""
    )

    assert codes_and_paths(found) == [("template_syntax", "workflow[1].next.arcs[0].when")]
    assert found[0].line == 13
    assert "unexpected '=='" in found[0].message


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ('{step: a, tool: {kind: noop, result: ["{{ a b }}"]}}', "workflow[0].tool.result[0]"),
        ('{step: a, tool: {kind: noop}, input: {x: {y: "{{ "}}}', "workflow[0].input.x.y"),
        ('{step: a, tool: {kind: noop, input: {x: "{{ a | nofilter }}"}}}', "workflow[0].tool.input.x"),
        ("{step: a, tool: {kind: noop, input: {x: \"{% include 'f' %}\"}}}", "workflow[0].tool.input.x"),
        ('{step: a, tool: {kind: noop}, next: {arcs: [{step: a, when: "a ==="}]}}', "workflow[0].next.arcs[0].when"),
        ('{step: a, tool: {kind: noop}, next: {arcs: [{step: a, when: "a b"}]}}', "workflow[0].next.arcs[0].when"),
    ],
)
def test_a_template_that_does_not_parse_is_refused(step: str, path: str) -> None:
    assert ("template_syntax", path) in codes_and_paths(problems(f"workflow: [{step}]"))


def test_templates_that_may_stay_as_written_are_only_warned_about() -> None:
    _, warnings = accepted(
        """workload: {x: "{{ broken"}
workflow:
- {step: a, tool: {kind: python, code: 'result = "{{"'}}
"""
    )

    assert codes_and_paths(warnings) == [
        ("template_syntax", "workload.x"),
        ("template_syntax", "workflow[0].tool.code"),
    ]


@pytest.mark.parametrize(
    ("document", "feature", "path"),
    [
        ("keychain: [{name: k}]\nworkflow: [{step: a}]", "the keychain", "keychain"),
        ("workbook: [{name: k}]\nworkflow: [{step: a}]", "the workbook", "workbook"),
        (
            "executor: {spec: {timeout: 5}}\nworkflow: [{step: a}]",
            "a timeout of the execution",
            "executor.spec.timeout",
        ),
        ("workflow: [{step: a, loop: {in: [1]}}]", "`loop`", "workflow[0].loop"),
        ("workflow: [{step: a, reduce: {from: a}}]", "`reduce`", "workflow[0].reduce"),
        ("workflow: [{step: a, when: x}]", "admission", "workflow[0].when"),
        ("workflow: [{step: a, set: {x: 1}}]", "`set`", "workflow[0].set"),
        ("workflow: [{step: a, output: {store: {kind: disk}}}]", "`output`", "workflow[0].output"),
        ("workflow: [{step: a, spec: {timeout: 5}}]", "a timeout of the step", "workflow[0].spec.timeout"),
        (
            "workflow: [{step: a, spec: {policy: {admit: {rules: []}}}}]",
            "`admit`",
            "workflow[0].spec.policy.admit",
        ),
        (
            "workflow: [{step: a, next: {arcs: [{step: a, set: {x: 1}}]}}]",
            "`set`",
            "workflow[0].next.arcs[0].set",
        ),
        (
            "workflow: [{step: a, next: {arcs: [{step: a, on: call.partial}]}}]",
            "`on` of an arc",
            "workflow[0].next.arcs[0].on",
        ),
        ("workflow: [{step: a, tool: [{kind: noop}]}]", "a pipeline", "workflow[0].tool"),
        ("workflow: [{step: a, tool: {kind: http}}]", "the tool 'http'", "workflow[0].tool.kind"),
        ("workflow: [{step: a, tool: {kind: noop, auth: k}}]", "`auth`", "workflow[0].tool.auth"),
        ("workflow: [{step: a, tool: {kind: noop, set: {x: 1}}}]", "`set`", "workflow[0].tool.set"),
        (
            "workflow: [{step: a, tool: {kind: python, script: {uri: x}}}]",
            "`script`",
            "workflow[0].tool.script",
        ),
        (
            "workflow: [{step: a, tool: {kind: noop, spec: {stream: {}}}}]",
            "`stream`",
            "workflow[0].tool.spec.stream",
        ),
        (
            "workflow: [{step: a, tool: {kind: noop, spec: {policy: {rules: [{}]}}}}]",
            "`rules`",
            "workflow[0].tool.spec.policy.rules",
        ),
        (
            "workflow: [{step: a, tool: {kind: noop, spec: {policy: {rate_limit: {rate: 1}}}}}]",
            "`rate_limit`",
            "workflow[0].tool.spec.policy.rate_limit",
        ),
        (
            'workflow: [{step: a, tool: {kind: python, code_b64: "{{ x }}"}}]',
            "a template in `code_b64`",
            "workflow[0].tool.code_b64",
        ),
    ],
)
def test_what_this_version_cannot_run_is_refused_by_name(document: str, feature: str, path: str) -> None:
    (problem,) = problems(document, supported=BARE)

    assert problem.code == "playbook.unsupported"
    assert feature in problem.message
    assert "not supported by this version" in problem.message
    assert problem.path == path
    assert problem.line is not None


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("vars: {}\nworkflow: [{step: a}]", "vars"),
        ("workflow: [{step: a, case: []}]", "workflow[0].case"),
        ("workflow: [{step: a, type: python}]", "workflow[0].type"),
        ("workflow: [{step: a, set_ctx: {}}]", "workflow[0].set_ctx"),
        ("workflow: [{step: a, set_iter: {}}]", "workflow[0].set_iter"),
        ("workflow: [{step: a, result: {}}]", "workflow[0].result"),
        ("workflow: [{step: a, next: {arcs: [{step: a, args: {}}]}}]", "workflow[0].next.arcs[0].args"),
    ],
)
def test_keys_that_the_language_no_longer_has_say_what_to_write_instead(document: str, path: str) -> None:
    (problem,) = problems(document)

    assert (problem.code, problem.path) == ("playbook.removed_key", path)
    assert problem.suggestion


@pytest.mark.parametrize(
    ("document", "code", "path"),
    [
        ("workflow: {}", "invalid_field", "workflow"),
        ("workflow: []", "invalid_field", "workflow"),
        ("workflow:", "missing_field", "workflow"),
        ("workload: 5\nworkflow: [{step: a}]", "invalid_field", "workload"),
        ("workload: text\nworkflow: [{step: a}]", "invalid_field", "workload"),
        ("workflow: [5]", "invalid_field", "workflow[0]"),
        ("workflow: [{step: 5}]", "invalid_field", "workflow[0].step"),
        ("workflow: [{step: ' a'}]", "invalid_field", "workflow[0].step"),
        ('workflow: [{step: "a\\0b"}]', "invalid_field", "workflow[0].step"),
        (f"workflow: [{{step: {'a' * 300}}}]", "invalid_field", "workflow[0].step"),
        ("workflow: [{step: a, desc: [1]}]", "invalid_field", "workflow[0].desc"),
        ("workflow: [{step: a, input: '{{ x }}'}]", "invalid_field", "workflow[0].input"),
        ("workflow: [{step: a, tool: python}]", "invalid_field", "workflow[0].tool"),
        ("workflow: [{step: a, tool: {}}]", "missing_field", "workflow[0].tool.kind"),
        ("workflow: [{step: a, tool: {kind: '{{ k }}'}}]", "unknown_tool", "workflow[0].tool.kind"),
        ("workflow: [{step: a, tool: {kind: noop, timeout: true}}]", "invalid_field", "workflow[0].tool.timeout"),
        ("workflow: [{step: a, tool: {kind: noop, timeout: '5'}}]", "invalid_field", "workflow[0].tool.timeout"),
        ("workflow: [{step: a, tool: {kind: noop, spec: 5}}]", "invalid_field", "workflow[0].tool.spec"),
        ("workflow: [{step: a, tool: {kind: python, code: 5}}]", "invalid_field", "workflow[0].tool.code"),
        ("workflow: [{step: a, tool: {kind: python, code_b64: '%'}}]", "invalid_field", "workflow[0].tool.code_b64"),
        (
            "workflow: [{step: a, tool: {kind: python, code: x, libs: {a b: os}}}]",
            "invalid_field",
            "workflow[0].tool.libs['a b']",
        ),
        (
            "workflow: [{step: a, tool: {kind: python, code: x, libs: {a: 5}}}]",
            "invalid_field",
            "workflow[0].tool.libs.a",
        ),
        ("workflow: [{step: a, next: 5}]", "invalid_field", "workflow[0].next"),
        ("workflow: [{step: a, next: {step: a}}]", "missing_field", "workflow[0].next"),
        ("workflow: [{step: a, next: {arcs: a}}]", "invalid_field", "workflow[0].next.arcs"),
        ("workflow: [{step: a, next: {arcs: [5]}}]", "invalid_field", "workflow[0].next.arcs[0]"),
        ("workflow: [{step: a, next: {arcs: [{when: x}]}}]", "missing_field", "workflow[0].next.arcs[0].step"),
        (
            "workflow: [{step: a, next: {arcs: [{step: a, when: 5}]}}]",
            "invalid_field",
            "workflow[0].next.arcs[0].when",
        ),
        ("workflow: [{step: a, next: b}]", "unknown_step", "workflow[0].next"),
        ("workflow: [{step: a, next: [b]}]", "unknown_step", "workflow[0].next[0]"),
        (
            "workflow: [{step: a, next: {spec: {mode: some}}}]",
            "invalid_field",
            "workflow[0].next.spec.mode",
        ),
        (
            "workflow: [{step: a, spec: {policy: {failure: {mode: never}}}}]",
            "invalid_field",
            "workflow[0].spec.policy.failure.mode",
        ),
        ("executor: {spec: {final_step: b}}\nworkflow: [{step: a}]", "unknown_step", "executor.spec.final_step"),
        ("executor: {spec: {final_step: a}}\nworkflow: [{step: a}]", "invalid_field", "executor.spec.final_step"),
        (
            "executor: {spec: {no_next_is_error: 'yes'}}\nworkflow: [{step: a}]",
            "invalid_field",
            "executor.spec.no_next_is_error",
        ),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_refused(document: str, code: str, path: str) -> None:
    assert codes_and_paths(problems(document)) == [(code, path)]


@pytest.mark.parametrize("document", ["5", "[]", "text"])
def test_a_document_that_is_no_map_is_refused(document: str) -> None:
    assert codes_and_paths(problems(document, head="")) == [("invalid_field", "")]


def test_duplicate_keys_and_other_problems_are_reported_together() -> None:
    found = problems("workflow:\n- {step: a, desc: x, desc: y}\n- {step: b, next: {arcs: [{step: c}]}}\n")

    assert codes_and_paths(found) == [
        ("duplicate_key", "workflow[0].desc"),
        ("unknown_step", "workflow[1].next.arcs[0].step"),
    ]


def test_warnings_come_with_success_and_have_their_place() -> None:
    _, warnings = accepted(
        """surprise: 1
workload: {ctx: 1}
workflow:
- step: output
  tol: {kind: noop}
- {step: lost, tool: {kind: noop, resulte: 1}}
"""
    )

    assert [(p.code.removeprefix("playbook."), p.path, p.line, p.suggestion) for p in warnings] == [
        ("unknown_key", "surprise", 4, None),
        ("shadowed_name", "workload.ctx", 5, None),
        ("missing_tool", "workflow[0]", 7, None),
        ("shadowed_name", "workflow[0].step", 7, None),
        ("unknown_key", "workflow[0].tol", 8, "did you mean 'tool'?"),
        ("unreachable_step", "workflow[1]", 9, None),
        ("unknown_key", "workflow[1].tool.resulte", 9, "did you mean 'result'?"),
    ]


def test_the_final_step_counts_as_reachable() -> None:
    _, warnings = accepted(
        "executor: {spec: {final_step: z}}\nworkflow: [{step: a, tool: {kind: noop}}, {step: z, tool: {kind: noop}}]"
    )

    assert warnings == ()


def test_older_forms_are_read_and_warned_about() -> None:
    playbook, warnings = parse_playbook(
        """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: old, path: a/old}
tracing: {}
workflow:
- step: a
  tool: {kind: python, spec: {code: result = 1, timeout: 4}, retry: 3, libs: [x]}
  next: b
- step: b
  tool: {kind: noop}
  next: [c, {step: d, when: "{{ x }}", cond: y}]
- {step: c, tool: {kind: noop}}
- {step: d, tool: {kind: noop}}
"""
    )

    assert {problem.code for problem in warnings} == {"playbook.older_form"}
    assert [problem.path for problem in warnings] == [
        "apiVersion",
        "tracing",
        "workflow[0].tool.spec.code",
        "workflow[0].tool.retry",
        "workflow[0].tool.libs",
        "workflow[0].next",
        "workflow[1].next",
        "workflow[1].next[0]",
        "workflow[1].next[1].cond",
    ]
    assert playbook.path == "a/old"
    assert playbook.steps["a"].tool == Tool(kind=ToolKind.PYTHON, config={"code": "result = 1"}, timeout_seconds=4.0)
    assert playbook.steps["a"].next.arcs == (Arc(step="b"),)
    assert playbook.steps["b"].next.mode is ArcMode.INCLUSIVE
    assert playbook.steps["b"].next.arcs == (Arc(step="c"), Arc(step="d", when="{{ x }}"))


def test_args_are_another_word_for_input() -> None:
    playbook, warnings = accepted(
        "workflow: [{step: a, args: {x: 1, y: 1}, input: {y: 2}, tool: {kind: noop, args: {z: 3}}}]"
    )

    assert warnings == ()
    assert playbook.steps["a"].merged_input() == {"x": 1, "y": 2, "z": 3}


def test_a_workflow_may_have_many_steps_but_not_any_number() -> None:
    (problem,) = problems("workflow:\n" + "- {step: a}\n" * 10_001)

    assert problem.code == "playbook.too_large"


def test_of_very_many_problems_only_so_many_are_listed() -> None:
    found = problems("workflow:\n" + "".join(f"- {{step: s{i}, loop: 1}}\n" for i in range(3000)))

    assert len(found) == 1000
