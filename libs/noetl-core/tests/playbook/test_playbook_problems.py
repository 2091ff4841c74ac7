"""Everything that the whole language refuses or warns about, by code and place."""

import pytest
from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.loop_model import FramePolicy
from noetl_core.playbook.model import AdmitRule, Arc, LoopMode, Playbook, ToolKind
from noetl_core.playbook.support import EVERYTHING, REGISTERED, RELEASE, TITLES, Feature, tool
from noetl_core.playbook.validate import parse_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"


def problems(document: str) -> list[Problem]:
    with pytest.raises(PlaybookInvalid) as refused:
        parse_playbook(HEAD + document, supported=EVERYTHING)
    return list(refused.value.problems)


def accepted(document: str) -> tuple[Playbook, tuple[Problem, ...]]:
    return parse_playbook(HEAD + document, supported=EVERYTHING)


def codes_and_paths(found: list[Problem] | tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.code.removeprefix("playbook."), problem.path) for problem in found]


def in_step(text: str) -> str:
    return f"workflow: [{{step: a, {text}}}]"


def in_loop(spec: str) -> str:
    return in_step(f"tool: {{kind: noop}}, loop: {{in: [1], spec: {spec}}}")


def in_rules(rules: str) -> str:
    return in_step(f"tool: {{kind: noop, spec: {{policy: {{rules: {rules}}}}}}}")


def in_http_policy(policy: str) -> str:
    return in_step(f"tool: {{kind: http, url: u, spec: {{policy: {policy}}}}}")


RULES = "workflow[0].tool.spec.policy.rules"
POLICY = "workflow[0].tool.spec.policy"
SPEC = "workflow[0].loop.spec"


@pytest.mark.parametrize(
    ("document", "code", "path"),
    [
        # rules
        (in_rules("{}"), "invalid_field", RULES),
        (in_rules("[5]"), "invalid_field", f"{RULES}[0]"),
        (in_rules("[{then: {do: fail}}]"), "missing_field", f"{RULES}[0].when"),
        (in_rules("[{when: x}]"), "missing_field", f"{RULES}[0].then"),
        (in_rules("[{when: x, then: {}}]"), "missing_field", f"{RULES}[0].then.do"),
        (in_rules("[{when: x, then: {do: stop}}]"), "invalid_field", f"{RULES}[0].then.do"),
        (in_rules("[{when: '{{ x', then: {do: fail}}]"), "template_syntax", f"{RULES}[0].when"),
        (in_rules("[{when: null, then: {do: fail}}]"), "invalid_field", f"{RULES}[0].when"),
        (in_rules("[{when: x, then: {do: retry, attempts: 0}}]"), "invalid_field", f"{RULES}[0].then.attempts"),
        (in_rules("[{when: x, then: {do: retry, delay: -1}}]"), "invalid_field", f"{RULES}[0].then.delay"),
        (in_rules("[{when: x, then: {do: jump}}]"), "missing_field", f"{RULES}[0].then.to"),
        (in_rules("[{when: x, then: {do: jump, to: b}}]"), "unknown_label", f"{RULES}[0].then.to"),
        (in_rules("[{when: x, then: {do: jump, to: previous}}]"), "unknown_label", f"{RULES}[0].then.to"),
        (in_rules("[{when: x, then: {do: fail, set: {y: '{{ '}}}]"), "template_syntax", f"{RULES}[0].then.set.y"),
        (in_rules("[{when: x, else: {then: {do: fail}}}]"), "invalid_field", f"{RULES}[0].when"),
        (in_rules("[{else: {then: {}}}]"), "missing_field", f"{RULES}[0].else.then.do"),
        (in_rules("[{else: {set: {x: 1}}}]"), "missing_field", f"{RULES}[0].else.do"),
        (in_rules("[{else: {}}]"), "missing_field", f"{RULES}[0].then"),
        (in_rules("[{else: 5}]"), "invalid_field", f"{RULES}[0].else"),
        (in_rules("[{else: {do: fail}}, {when: x, then: {do: fail}}]"), "invalid_field", f"{RULES}[0].else"),
        # paginate, rate_limit, stream
        (in_http_policy("{paginate: {}}"), "tool_config", f"{POLICY}.paginate.by"),
        (in_http_policy("{paginate: {by: name}}"), "invalid_field", f"{POLICY}.paginate.by"),
        (in_http_policy("{paginate: {by: page}}"), "tool_config", f"{POLICY}.paginate.param"),
        (in_http_policy("{paginate: {by: offset, param: p}}"), "tool_config", f"{POLICY}.paginate.size"),
        (in_http_policy("{paginate: {by: cursor, param: p}}"), "tool_config", f"{POLICY}.paginate.next"),
        (in_http_policy("{paginate: {by: next_link, pram: p}}"), "unknown_key", f"{POLICY}.paginate.pram"),
        (in_http_policy("{paginate: {by: next_link, max_pages: 0}}"), "invalid_field", f"{POLICY}.paginate.max_pages"),
        (
            in_http_policy("{paginate: {by: next_link, stop_when: 'a b'}}"),
            "template_syntax",
            f"{POLICY}.paginate.stop_when",
        ),
        (in_http_policy("{rate_limit: {}}"), "missing_field", f"{POLICY}.rate_limit.rate"),
        (in_http_policy("{rate_limit: {rate: 0}}"), "invalid_field", f"{POLICY}.rate_limit.rate"),
        (in_http_policy("{rate_limit: {rate: 1, brust: 2}}"), "unknown_key", f"{POLICY}.rate_limit.brust"),
        (
            in_step("tool: {kind: noop, spec: {policy: {paginate: {by: next_link}}}}"),
            "tool_config",
            f"{POLICY}.paginate",
        ),
        (in_step("tool: {kind: noop, spec: {stream: {}}}"), "tool_config", "workflow[0].tool.spec.stream"),
        (in_step("tool: {kind: http, url: u, spec: {stream: {}}}"), "tool_config", "workflow[0].tool.spec.stream"),
        (
            in_step("tool: {kind: postgres, spec: {stream: {chunk: 5}}}"),
            "unknown_key",
            "workflow[0].tool.spec.stream.chunk",
        ),
        (
            in_step("tool: {kind: postgres, spec: {stream: {chunk_rows: 0}}}"),
            "invalid_field",
            "workflow[0].tool.spec.stream.chunk_rows",
        ),
        # set, output
        (in_step("tool: {kind: noop}, set: [1]"), "invalid_field", "workflow[0].set"),
        (in_step("tool: {kind: noop}, set: {ctx: 1}"), "invalid_field", "workflow[0].set.ctx"),
        (in_step("tool: {kind: noop}, set: {ctx.: 1}"), "invalid_field", "workflow[0].set['ctx.']"),
        (in_step("tool: {kind: noop}, set: {a..b: 1}"), "invalid_field", "workflow[0].set['a..b']"),
        (in_step("tool: {kind: noop}, set: {'': 1}"), "invalid_field", "workflow[0].set['']"),
        (in_step("tool: {kind: noop}, set: {ctx: {x y.: 1}}"), "invalid_field", "workflow[0].set.ctx['x y.']"),
        (in_step("tool: {kind: noop}, set: {x: {y: ['{{ a b }}']}}"), "template_syntax", "workflow[0].set.x.y[0]"),
        (in_step("tool: {kind: noop}, output: 5"), "invalid_field", "workflow[0].output"),
        (in_step("tool: {kind: noop}, output: {scope: ever}"), "invalid_field", "workflow[0].output.scope"),
        (
            in_step("tool: {kind: noop}, output: {store: {kind: tape}}"),
            "invalid_field",
            "workflow[0].output.store.kind",
        ),
        (in_step("tool: {kind: noop}, output: {select: [5]}"), "invalid_field", "workflow[0].output.select[0]"),
        (
            in_step("tool: {kind: noop}, output: {select: [{as: x}]}"),
            "missing_field",
            "workflow[0].output.select[0].path",
        ),
        # admission, arcs, spec
        (
            in_step("tool: {kind: noop}, spec: {policy: {admit: {rules: [{when: x, then: {}}]}}}"),
            "missing_field",
            "workflow[0].spec.policy.admit.rules[0].then.allow",
        ),
        (
            in_step("tool: {kind: noop}, spec: {policy: {admit: {rules: [{else: {deny: true}}]}}}"),
            "missing_field",
            "workflow[0].spec.policy.admit.rules[0].then",
        ),
        (
            in_step("tool: {kind: noop}, when: x, spec: {policy: {admit: {rules: [{else: {allow: true}}]}}}"),
            "invalid_field",
            "workflow[0].when",
        ),
        (in_step("tool: {kind: noop}, when: 'a b'"), "template_syntax", "workflow[0].when"),
        (in_step("tool: {kind: noop}, spec: {timeout: 0}"), "invalid_field", "workflow[0].spec.timeout"),
        (
            in_step("tool: {kind: noop}, next: {arcs: [{step: a, on: call.done}]}"),
            "invalid_field",
            "workflow[0].next.arcs[0].on",
        ),
        (
            in_step("tool: {kind: noop}, next: {arcs: [{step: a, when: null}]}"),
            "invalid_field",
            "workflow[0].next.arcs[0].when",
        ),
        (
            in_step("tool: {kind: noop}, next: {arcs: [{step: a, set: {x: '{{ '}}]}"),
            "template_syntax",
            "workflow[0].next.arcs[0].set.x",
        ),
        ("executor: {spec: {timeout: soon}}\nworkflow: [{step: a}]", "invalid_field", "executor.spec.timeout"),
        # pipelines
        (in_step("tool: []"), "invalid_field", "workflow[0].tool"),
        (in_step("tool: [5]"), "invalid_field", "workflow[0].tool[0]"),
        (in_step("tool: [{name: x}]"), "missing_field", "workflow[0].tool[0].kind"),
        (
            in_step("tool: [{kind: noop, name: x}, {kind: noop, name: x}]"),
            "duplicate_label",
            "workflow[0].tool[1].name",
        ),
        (in_step("tool: [{kind: noop, name: task_1}, {kind: noop}]"), "duplicate_label", "workflow[0].tool[1]"),
        (in_step("tool: [{x: {kind: noop}}, {x: {kind: noop}}]"), "duplicate_label", "workflow[0].tool[1].x"),
        (in_step("tool: [{x: {kind: pyton}}]"), "unknown_tool", "workflow[0].tool[0].x.kind"),
        (in_step("tool: [{kind: noop, loop: {}}]"), "loop_source", "workflow[0].tool[0].loop"),
        (
            in_step("tool: [{kind: noop, loop: {in: [], spec: {mode: fanout}}}]"),
            "invalid_field",
            "workflow[0].tool[0].loop.spec.mode",
        ),
        ("workflow: [{step: a, tool: [" + "{kind: noop}," * 1001 + "]}]", "too_large", "workflow[0].tool"),
        # loops
        (in_step("tool: {kind: noop}, loop: []"), "invalid_field", "workflow[0].loop"),
        (in_step("tool: {kind: noop}, loop: {}"), "loop_source", "workflow[0].loop"),
        (
            in_step("tool: {kind: noop}, loop: {in: [], cursor: {kind: postgres, claim: x}}"),
            "loop_source",
            "workflow[0].loop",
        ),
        (in_step("tool: {kind: noop}, loop: {in: 5}"), "invalid_field", "workflow[0].loop.in"),
        (in_step("tool: {kind: noop}, loop: {in: '{{ x'}"), "template_syntax", "workflow[0].loop.in"),
        (in_step("tool: {kind: noop}, loop: {in: [], iterator: a b}"), "invalid_field", "workflow[0].loop.iterator"),
        (in_loop("{mode: random}"), "invalid_field", f"{SPEC}.mode"),
        (in_loop("{mode: cursor}"), "invalid_field", f"{SPEC}.mode"),
        (in_loop("{max_in_flight: 0}"), "invalid_field", f"{SPEC}.max_in_flight"),
        (in_loop("{max_in_flight: 10001}"), "invalid_field", f"{SPEC}.max_in_flight"),
        (in_loop("{max_in_flight: 1.5}"), "invalid_field", f"{SPEC}.max_in_flight"),
        (in_loop("{max_in_flight: many}"), "invalid_field", f"{SPEC}.max_in_flight"),
        (in_loop("{max_in_flight: '{{ a b }}'}"), "template_syntax", f"{SPEC}.max_in_flight"),
        (in_loop("{engine: flink}"), "invalid_field", f"{SPEC}.engine"),
        (in_loop("{failure_budget: {cuont: 1}}"), "unknown_key", f"{SPEC}.failure_budget.cuont"),
        (in_loop("{failure_budget: {share: 1.5}}"), "invalid_field", f"{SPEC}.failure_budget.share"),
        (in_loop("{frame: {max_row: 1}}"), "unknown_key", f"{SPEC}.frame.max_row"),
        (in_loop("{frame: {max_rows: 0}}"), "invalid_field", f"{SPEC}.frame.max_rows"),
        (in_loop("{frame: {process: column}}"), "invalid_field", f"{SPEC}.frame.process"),
        (
            in_loop("{frame: {lease_seconds: 10, heartbeat_seconds: 5.5}}"),
            "invalid_field",
            f"{SPEC}.frame.heartbeat_seconds",
        ),
        (in_loop("{frame: {heartbeat_seconds: 61}}"), "invalid_field", f"{SPEC}.frame.heartbeat_seconds"),
        (in_step("tool: {kind: noop}, loop: {cursor: {}}"), "tool_config", "workflow[0].loop.cursor.kind"),
        (
            in_step("tool: {kind: noop}, loop: {cursor: {kind: kafka, claim: x}}"),
            "tool_config",
            "workflow[0].loop.cursor.kind",
        ),
        (
            in_step("tool: {kind: noop}, loop: {cursor: {kind: postgres, claim: x}, spec: {mode: parallel}}"),
            "invalid_field",
            f"{SPEC}.mode",
        ),
        # tools
        (in_step("tool: {kind: http}"), "missing_field", "workflow[0].tool.url"),
        (in_step("tool: {kind: http, url: u, verify_ssl: 5}"), "invalid_field", "workflow[0].tool.verify_ssl"),
        (in_step("tool: {kind: http, url: u, headers: text}"), "invalid_field", "workflow[0].tool.headers"),
        (in_step("tool: {kind: http, url: '{{ u'}"), "template_syntax", "workflow[0].tool.url"),
        (in_step("tool: {kind: postgres, auth: 5}"), "invalid_field", "workflow[0].tool.auth"),
        (in_step("tool: {kind: postgres, password: x}"), "tool_config", "workflow[0].tool.password"),
        (in_step("tool: {kind: postgres, spec: {db_password: x}}"), "tool_config", "workflow[0].tool.spec.db_password"),
        (in_step("tool: {kind: postgres, command: '{% if x %}'}"), "template_syntax", "workflow[0].tool.command"),
        (in_step("tool: {kind: postgres, commands: {a: b}}"), "invalid_field", "workflow[0].tool.commands"),
        (in_step("tool: {kind: duckdb, script: text}"), "invalid_field", "workflow[0].tool.script"),
        (in_step("tool: {kind: duckdb, script: {}}"), "missing_field", "workflow[0].tool.script.uri"),
        (
            in_step("tool: {kind: duckdb, script: {uri: u, source: {type: ftp}}}"),
            "invalid_field",
            "workflow[0].tool.script.source.type",
        ),
        (in_step("tool: {kind: spark}"), "tool_config", "workflow[0].tool"),
        (in_step("tool: {kind: spark, sql: x, code: y}"), "tool_config", "workflow[0].tool"),
        (in_step("tool: {kind: playbook}"), "missing_field", "workflow[0].tool.path"),
        (in_step("tool: {kind: shell}"), "missing_field", "workflow[0].tool.cmds"),
        (in_step("tool: {kind: transfer, source: {type: http}}"), "missing_field", "workflow[0].tool.target"),
        (
            in_step("tool: {kind: transfer, source: {}, target: {type: postgres}}"),
            "missing_field",
            "workflow[0].tool.source.type",
        ),
        (
            in_step("tool: {kind: transfer, source: {type: http}, target: {type: postgres, mode: merge}}"),
            "invalid_field",
            "workflow[0].tool.target.mode",
        ),
        (in_step("tool: {kind: artifact, action: put}"), "invalid_field", "workflow[0].tool.action"),
        (in_step("tool: {kind: nats}"), "missing_field", "workflow[0].tool.operation"),
        (in_step("tool: {kind: nats, operation: kv_putt}"), "invalid_field", "workflow[0].tool.operation"),
        (in_step("tool: {kind: container}"), "missing_field", "workflow[0].tool.image"),
        (in_step("tool: {kind: script}"), "tool_config", "workflow[0].tool.script"),
        (in_step("tool: {kind: script, script: a.py, uri: b.py}"), "tool_config", "workflow[0].tool.uri"),
        (in_step("tool: {kind: script, script: 5}"), "invalid_field", "workflow[0].tool.script"),
        (in_step("tool: {kind: script, script: {source: {type: s3}}}"), "missing_field", "workflow[0].tool.script.uri"),
        (in_step("tool: {kind: workbook}"), "missing_field", "workflow[0].tool.task"),
        (in_step("tool: [{kind: workbook, name: x}]"), "missing_field", "workflow[0].tool[0].task"),
        (in_step("tool: {kind: workbook, name: x}"), "unknown_task", "workflow[0].tool"),
        # keychain and workbook
        ("keychain: {}\nworkflow: [{step: a}]", "invalid_field", "keychain"),
        ("keychain: {a: 1}\nworkflow: [{step: a}]", "invalid_field", "keychain"),
        ("keychain: [5]\nworkflow: [{step: a}]", "invalid_field", "keychain[0]"),
        ("keychain: [{kind: static}]\nworkflow: [{step: a}]", "missing_field", "keychain[0].name"),
        ("keychain: [{name: k}]\nworkflow: [{step: a}]", "missing_field", "keychain[0].kind"),
        ("keychain: [{name: k, kind: vault}]\nworkflow: [{step: a}]", "invalid_field", "keychain[0].kind"),
        ("keychain: [{name: k, kind: bearer, token: 5}]\nworkflow: [{step: a}]", "invalid_field", "keychain[0].token"),
        (
            "keychain: [{name: k, kind: bearer, scope: all}]\nworkflow: [{step: a}]",
            "invalid_field",
            "keychain[0].scope",
        ),
        (
            "keychain: [{name: k, kind: static}, {name: k, kind: static}]\nworkflow: [{step: a}]",
            "duplicate_label",
            "keychain[1].name",
        ),
        ("workbook: [{name: w}]\nworkflow: [{step: a}]", "missing_field", "workbook[0].tool"),
        ("workbook: [{name: w, tool: [{kind: noop}]}]\nworkflow: [{step: a}]", "invalid_field", "workbook[0].tool"),
        (
            "workbook: [{name: w, tool: {kind: noop}}, {name: w, tool: {kind: noop}}]\nworkflow: [{step: a}]",
            "duplicate_label",
            "workbook[1].name",
        ),
        (
            "workbook: [{name: w, tool: {kind: noop, loop: {in: []}}}]\nworkflow: [{step: a}]",
            "invalid_field",
            "workbook[0].tool.loop",
        ),
        (
            "workbook: [{name: w, tool: {kind: workbook, task: x}}]\nworkflow: [{step: a}]",
            "unknown_task",
            "workbook[0].tool",
        ),
        (
            "workbook: [{name: w, tool: {kind: workbook, task: w}}]\nworkflow: [{step: a}]",
            "invalid_field",
            "workbook[0].tool",
        ),
        # reduce
        (in_step("tool: {kind: noop}, reduce: {}"), "tool_config", "workflow[0].reduce.from"),
        (in_step("tool: {kind: noop}, reduce: {from: []}"), "tool_config", "workflow[0].reduce.from"),
        (in_step("tool: {kind: noop}, reduce: {from: a}"), "tool_config", "workflow[0].reduce.from"),
        (in_step("tool: {kind: noop}, reduce: {from: b}"), "unknown_step", "workflow[0].reduce.from"),
        (in_step("tool: {kind: noop}, reduce: {from: [b]}"), "unknown_step", "workflow[0].reduce.from[0]"),
        ("workflow: [{step: b}, {step: a, reduce: {from: b}}]", "tool_config", "workflow[1].reduce.from"),
        (
            "workflow: [{step: b, loop: {in: []}}, {step: a, reduce: {from: b, partition: 2}}]",
            "unknown_key",
            "workflow[1].reduce.partition",
        ),
        (
            "workflow: [{step: b, loop: {in: []}}, {step: a, reduce: {from: b, spec: {mode: x}}}]",
            "unknown_key",
            "workflow[1].reduce.spec.mode",
        ),
        (
            "workflow: [{step: b, loop: {in: []}}, {step: a, reduce: {from: b, partitions: 2}}]",
            "tool_config",
            "workflow[1].reduce.partitions",
        ),
        (
            "workflow: [{step: b, loop: {in: []}}, {step: a, loop: {in: []}, reduce: {from: b}}]",
            "tool_config",
            "workflow[1].reduce",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(document: str, code: str, path: str) -> None:
    found = problems(document)

    assert (code, path) in codes_and_paths(found)
    assert all(problem.line is not None and problem.message for problem in found)


WAITING = "{kind: playbook, path: p, return_step: r}"


@pytest.mark.parametrize(
    "around",
    [
        "loop: {in: [], spec: {frame: {}}}",
        "loop: {in: [], spec: {mode: fanout}}",
        "loop: {in: [], spec: {engine: spark}}",
        "loop: {cursor: {kind: postgres, auth: x, claim: y}}",
    ],
)
def test_nobody_waits_for_a_playbook_in_a_frame(around: str) -> None:
    workbook = f"workbook: [{{name: w, tool: {WAITING}}}]\n"

    assert codes_and_paths(problems(in_step(f"tool: {WAITING}, {around}"))) == [("wait_in_frame", "workflow[0].tool")]
    assert codes_and_paths(problems(in_step(f"tool: [{{kind: noop}}, {WAITING}], {around}"))) == [
        ("wait_in_frame", "workflow[0].tool[1]")
    ]
    assert codes_and_paths(problems(workbook + in_step(f"tool: {{kind: workbook, task: w}}, {around}"))) == [
        ("wait_in_frame", "workflow[0].tool")
    ]
    accepted(in_step(f"tool: {{kind: playbook, path: p}}, {around}"))
    accepted(in_step(f"tool: {WAITING}, loop: {{in: []}}"))
    accepted(in_step("tool: [{kind: playbook, path: p, return_step: r, loop: {in: []}}]"))


def test_a_call_is_followed_through_tasks_that_call_tasks() -> None:
    tasks = f"{{name: c, tool: {WAITING}}}, {{name: a, tool: {{kind: workbook, task: b}}}}"
    chain = f"workbook: [{tasks}, {{name: b, tool: {{kind: workbook, task: c}}}}]\n"
    circle = f"workbook: [{tasks}, {{name: b, tool: {{kind: workbook, task: a}}}}]\n"
    call = in_step("tool: {kind: workbook, task: a}, loop: {in: [], spec: {frame: {}}}")

    assert codes_and_paths(problems(chain + call)) == [("wait_in_frame", "workflow[0].tool")]
    assert codes_and_paths(problems(circle + call)) == [
        ("invalid_field", "workbook[1].tool"),
        ("invalid_field", "workbook[2].tool"),
    ]


def test_suggestions_name_the_nearest_word() -> None:
    found = problems(
        """
workbook: [{name: double, tool: {kind: noop}}]
workflow:
- step: first
  loop: {in: [], spec: {mode: paralel, frame: {max_row: 1}}}
  tool:
  - {name: fetch, kind: noop}
  - kind: workbook
    task: duble
    spec: {policy: {rules: [{when: x, then: {do: jump, to: fetsh}}]}}
"""
    )

    assert [(problem.line, problem.suggestion) for problem in found] == [
        (8, "did you mean 'parallel'?"),
        (8, "did you mean 'max_rows'?"),
        (11, "did you mean 'double'?"),
        (13, "did you mean 'fetch'?"),
    ]


def test_names_that_hide_those_of_the_runtime_are_warned_about() -> None:
    _, warnings = accepted(
        """
keychain: [{name: job, kind: static}]
workload: {iter: 1}
workflow:
- step: event
  loop: {in: [], iterator: frame}
  tool: [{name: output, kind: noop, set: {ctx.error: 1, iter.output: 2}}]
  set: {steps: 1}
"""
    )

    assert codes_and_paths(warnings) == [
        ("shadowed_name", "keychain[0].name"),
        ("shadowed_name", "workload.iter"),
        ("shadowed_name", "workflow[0].step"),
        ("shadowed_name", "workflow[0].loop.iterator"),
        ("shadowed_name", "workflow[0].tool[0]"),
        ("shadowed_name", "workflow[0].tool[0].set['ctx.error']"),
        ("shadowed_name", "workflow[0].set.steps"),
    ]


def test_keys_that_nobody_knows_are_ignored_with_a_warning() -> None:
    playbook, warnings = accepted(
        """
workflow:
- step: a
  loop: {in: [], spec: {moed: parallel}}
  tool: {kind: http, url: u, parms: {a: 1}, output: {ttl: 1h, store: {kind: disk, ttl: 1h}}}
  spec: {policy: {admit: {rules: [], mode: x}}}
"""
    )

    assert [(problem.path, problem.suggestion) for problem in warnings] == [
        ("workflow[0].loop.spec.moed", "did you mean 'mode'?"),
        ("workflow[0].tool.parms", "did you mean 'params'?"),
        ("workflow[0].tool.output.ttl", None),
        ("workflow[0].tool.output.store.ttl", None),
        ("workflow[0].spec.policy.admit.mode", None),
    ]
    assert playbook.steps["a"].tool.config == {"url": "u"}


def test_commands_that_are_no_templates_are_only_warned_about() -> None:
    _, warnings = accepted(in_step("tool: {kind: shell, cmds: ['echo ${#x} {{']}"))

    assert codes_and_paths(warnings) == [("template_syntax", "workflow[0].tool.cmds[0]")]


def test_older_forms_of_the_whole_language_are_read_and_warned_about_where_the_table_says_so() -> None:
    playbook, warnings = accepted(
        """
spec: {x: 1}
executor: {version: noetl-runtime/1, requires: {tools: [http]}, spec: {policy: {x: 1}}}
keychain: [{name: k, type: static, map: {a: b}}]
workflow:
- step: a
  when: "{{ ready }}"
  args: {x: 1}
  tool:
  - old: {kind: postgres, credential: db, command: SELECT 1, args: {y: 2}, retry: {max_attempts: 3}}
  - name: rules
    kind: noop
    output_select: [rows]
    output: {output_select: [{path: a, as: b}]}
    spec:
      policy:
        rules:
        - {when: x, then: {do: continue}}
        - else: {do: fail, set: {ctx.y: 1}}
  - {kind: noop, spec: {policy: {rules: [{else: null, then: {do: break}}]}, result: 5}}
  loop: {in: [], mode: async, concurrency: 3, spec: {policy: {exec: local}}}
  spec: {policy: {lifecycle: {x: 1}, emit: {x: 1}}}
  next: [b, {step: c, cond: x}]
- {step: b, loop: {in: [], spec: {mode: async, concurrency: 4}}, tool: {kind: noop}}
- step: c
  loop: {in: []}
  spec: {loop_mode: fanout, fanout: {max_shard_retries: 5}}
  tool: {kind: noop}
"""
    )

    assert {problem.code for problem in warnings} == {"playbook.older_form"}
    assert [problem.path for problem in warnings] == [
        "spec",
        "executor.version",
        "executor.requires",
        "executor.spec.policy",
        "workflow[0].when",
        "workflow[0].tool[0].old.credential",
        "workflow[0].tool[0].old.retry",
        "workflow[0].tool[2].spec.result",
        "workflow[0].loop.mode",
        "workflow[0].loop.concurrency",
        "workflow[0].loop.spec.policy",
        "workflow[0].spec.policy.lifecycle",
        "workflow[0].spec.policy.emit",
        "workflow[0].next",
        "workflow[0].next[0]",
        "workflow[0].next[1].cond",
        "workflow[1].loop.spec.mode",
        "workflow[1].loop.spec.concurrency",
    ]
    a, b, c = playbook.steps.values()
    assert a.admit == (AdmitRule(when="{{ ready }}", allow=True), AdmitRule(allow=False))
    assert [task.label for task in a.tasks] == ["old", "rules", "task_2"]
    assert (a.tool.auth, a.merged_input()) == ("db", {"x": 1, "y": 2})
    assert [str(selected.path) for selected in a.tasks[1].tool.output.select] == ["a", "rows"]  # type: ignore[union-attr]
    assert [rule.then.do for task in a.tasks for rule in task.tool.rules] == ["continue", "fail", "break"]
    assert a.tasks[2].tool.config == {"result": 5}
    assert a.next.arcs == (Arc(step="b"), Arc(step="c"))
    assert playbook.keychain["k"].kind == "static"
    loops = [step.loop for step in (a, b, c) if step.loop is not None]
    assert [(loop.mode, loop.max_in_flight) for loop in loops] == [
        (LoopMode.PARALLEL, 3),
        (LoopMode.PARALLEL, 4),
        (LoopMode.FANOUT, 8),
    ]
    assert loops[2].max_item_retries == 5


def test_every_feature_has_a_name_to_be_refused_by() -> None:
    assert TITLES.keys() == {*Feature}
    assert RELEASE <= EVERYTHING


@pytest.mark.parametrize(
    ("document", "feature"),
    [
        (in_step("tool: [{kind: noop}]"), Feature.PIPELINES),
        (in_rules("[{else: {do: fail}}]"), Feature.RULES),
        (in_http_policy("{paginate: {by: next_link}}"), Feature.PAGINATE),
        (in_http_policy("{rate_limit: {rate: 1}}"), Feature.RATE_LIMIT),
        (in_step("tool: {kind: postgres, spec: {stream: {}}}"), Feature.STREAM),
        (in_step("tool: {kind: noop, set: {x: 1}}"), Feature.SET),
        (in_step("tool: {kind: noop}, set: {x: 1}"), Feature.SET),
        (in_step("next: {arcs: [{step: a, set: {x: 1}}]}"), Feature.SET),
        (in_step("output: {scope: step}"), Feature.OUTPUT),
        (in_step("output_select: [a]"), Feature.OUTPUT),
        (in_step("when: x"), Feature.ADMIT),
        (in_step("spec: {policy: {admit: {rules: []}}}"), Feature.ADMIT),
        (in_step("loop: {in: []}"), Feature.LOOP_SEQUENTIAL),
        (in_loop("{mode: parallel}"), Feature.LOOP_PARALLEL),
        (in_loop("{mode: fanout}"), Feature.LOOP_FANOUT),
        (in_loop("{frame: {}}"), Feature.LOOP_FRAME),
        (in_loop("{engine: spark}"), Feature.LOOP_SPARK),
        (in_step("loop: {cursor: {kind: postgres, claim: x}}"), Feature.LOOP_CURSOR),
        (in_step("tool: [{kind: noop, loop: {in: []}}]"), Feature.TASK_LOOP),
        ("workflow: [{step: b, loop: {in: []}}, {step: a, reduce: {from: b}}]", Feature.REDUCE),
        (
            "workflow: [{step: a, tool: {kind: duckdb, command: x, spec: {stream: {}}}, "
            "next: {arcs: [{step: b, on: call.partial}]}}, {step: b, tool: {kind: noop}}]",
            Feature.ARCS_ON_PARTIAL,
        ),
        (in_step("spec: {timeout: 5}"), Feature.STEP_TIMEOUT),
        ("executor: {spec: {timeout: 5}}\nworkflow: [{step: a}]", Feature.EXECUTOR_TIMEOUT),
        (in_step("tool: {kind: noop, timeout: '{{ x }}'}"), Feature.TIMEOUT_TEMPLATE),
        ("keychain: [{name: k, kind: static}]\nworkflow: [{step: a}]", Feature.KEYCHAIN),
        (in_step("tool: {kind: noop, auth: x}"), Feature.CREDENTIALS),
        (in_step("tool: {kind: postgres, credential: x}"), Feature.CREDENTIALS),
        ("workbook: [{name: k, tool: {kind: noop}}]\nworkflow: [{step: a}]", Feature.WORKBOOK),
        (in_step("tool: {kind: python, script: {uri: x}}"), Feature.SCRIPT),
        (in_step("tool: {kind: script, script: x.py}"), Feature.SCRIPT),
        (in_step("tool: {kind: script, image: x}"), Feature.SCRIPT_JOB),
        (in_step("tool: {kind: script, script: x.sh, namespace: n}"), Feature.SCRIPT_JOB),
        (in_step("tool: {kind: python, code_b64: '{{ x }}'}"), Feature.CODE_B64_TEMPLATE),
        *((in_step(f"tool: {{kind: {kind}}}"), tool(kind)) for kind in ToolKind),
    ],
)
def test_what_asks_for_a_feature_is_refused_without_it_and_only_then(document: str, feature: str) -> None:
    with pytest.raises(PlaybookInvalid) as refused:
        parse_playbook(HEAD + document, supported=EVERYTHING - {feature})

    assert [problem.code for problem in refused.value.problems] == ["playbook.unsupported"]
    assert "not supported by this version" in refused.value.problems[0].message
    if isinstance(feature, Feature):
        assert TITLES[feature] in refused.value.problems[0].message
        accepted(document)


def test_a_plug_in_adds_kinds_with_keys_of_their_own() -> None:
    document = HEAD + in_step("tool: {kind: acme, timeout: 3, auth: k, flavour: '{{ f }}', nothing: null}")
    supported = EVERYTHING | {tool("acme")}

    playbook, warnings = parse_playbook(document, supported=supported)

    acme = playbook.steps["a"].tool
    assert warnings == ()
    assert (acme.kind, acme.auth, acme.timeout_seconds) == ("acme", "k", 3.0)
    assert acme.config == {"flavour": "{{ f }}", "nothing": None}
    assert codes_and_paths(problems(in_step("tool: {kind: acme}"))) == [("unknown_tool", "workflow[0].tool.kind")]
    with pytest.raises(PlaybookInvalid):
        parse_playbook(HEAD + in_step("tool: {kind: acme, flavour: '{{ f'}"), supported=supported)


def test_what_was_registered_elsewhere_with_a_plug_in_can_be_read_without_it() -> None:
    playbook, _ = parse_playbook(HEAD + in_step("tool: {kind: acme, flavour: 1}"), supported=REGISTERED)

    assert playbook.steps["a"].tool.config == {"flavour": 1}


def test_what_was_registered_before_chunks_could_not_lead_in_circles_can_be_read() -> None:
    circle = """\
workflow:
- step: a
  tool: {kind: duckdb, command: SELECT 1, spec: {stream: {}}}
  next: {arcs: [{step: b, on: call.partial}]}
- step: b
  tool: {kind: duckdb, command: SELECT 1, spec: {stream: {}}}
  next: {arcs: [{step: a, on: call.partial}]}
"""
    playbook, _ = parse_playbook(HEAD + circle, supported=REGISTERED)

    assert [*playbook.steps] == ["a", "b"]
    with pytest.raises(PlaybookInvalid, match="lead back to this step"):
        parse_playbook(HEAD + circle, supported=EVERYTHING)


REDUCE = """\
workflow:
- {step: m, loop: {in: [1]}, tool: {kind: noop}, next: {arcs: [{step: r}]}}
- step: r
  tool: {kind: noop}
  reduce:
    from: m
    spec:
      frame:
        max_attempts: 7
        KEY
"""


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("max_rows: 5", "`partitions` says how many"),
        ("max_bytes: 5", "more `partitions` are smaller"),
        ("process: row", "once for all rows of a partition"),
        ("row_concurrency: 2", "`max_in_flight` says how many"),
        ("on_failure: bisect", "tried again as a whole"),
    ],
)
def test_what_means_nothing_to_a_reduce_is_refused_and_was_accepted_once(written: str, reason: str) -> None:
    key = written.partition(":")[0]
    document = HEAD + REDUCE.replace("KEY", written)
    with pytest.raises(PlaybookInvalid) as refusal:
        parse_playbook(document, supported=EVERYTHING)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.path) == ("playbook.unsupported", f"workflow[1].reduce.spec.frame.{key}")
    assert problem.line == document[: document.index(written)].count("\n") + 1
    assert reason in problem.message

    reduce = parse_playbook(document, supported=REGISTERED)[0].steps["r"].reduce
    assert reduce is not None and reduce.frame == FramePolicy(max_attempts=7)


@pytest.mark.parametrize("kind", ["snowflake", "container", "subscription", "agent", "ducklake"])
def test_a_kind_that_needs_more_than_this_says_that_a_plug_in_can_provide_it(kind: str) -> None:
    with pytest.raises(PlaybookInvalid, match="unless a plug-in provides it"):
        parse_playbook(HEAD + in_step(f"tool: {{kind: {kind}}}"), supported=EVERYTHING - {tool(kind)})


def test_a_suggestion_looks_at_no_more_names_than_it_compares() -> None:
    names = (f"s{number}" for number in range(1_000_000))

    assert Findings().did_you_mean("t1", names) is None
    assert int(next(names)[1:]) < 1_000
