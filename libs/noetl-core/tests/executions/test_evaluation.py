"""Control expressions that need more than events tell are evaluated by a worker, and decided on as if they had not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonObject
from noetl_core.commands.events import CommandIssued
from noetl_core.events import Event
from noetl_core.executions.evaluation import Place
from noetl_core.executions.events import CtxUpdated, StepExited
from noetl_core.executions.state import ExecutionStatus, StepStatus
from noetl_core.fold import prune
from noetl_core.steering.events import ExecutionPaused, ExecutionResumed
from noetl_core.streams.events import CallPartial
from noetl_testkit.pure_run import PureRun

ROWS = {"rows": [{"n": 1}, {"n": 2}, {"n": 3}], "row_count": 3}


def internal(run: PureRun) -> list[CommandIssued]:
    return [event for event in run.events if isinstance(event, CommandIssued) and event.evaluation is not None]


def updates(run: PureRun) -> list[CtxUpdated]:
    return [event for event in run.events if isinstance(event, CtxUpdated)]


def rows(step: str, visit: int) -> Any:
    return ROWS


OVER_ROWS = """
workflow:
- step: a
  tool: {kind: noop}
  next: {arcs: [{step: b, when: "{{ output.data.rows | length > 2 }}"}, {step: c}]}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""


def test_a_condition_over_rows_is_evaluated_by_an_internal_command_and_the_planner_chooses_the_arc() -> None:
    many = PureRun.of(OVER_ROWS, rows).to_the_end()
    few = PureRun.of(OVER_ROWS, lambda step, visit: {"rows": [1]}).to_the_end()

    assert many.entered() == ["a", "b"]
    assert few.entered() == ["a", "c"]
    assert [event.step for event in internal(many)] == ["a:evaluate_leave"]
    assert many.state.execution.status is ExecutionStatus.COMPLETED


def test_what_events_tell_is_decided_without_any_internal_command() -> None:
    run = PureRun.of(OVER_ROWS.replace("rows | length > 2", "row_count > 2"), rows).to_the_end()

    assert run.entered() == ["a", "b"]
    assert internal(run) == []


def test_the_step_stays_active_and_nothing_ends_while_a_worker_evaluates() -> None:
    run = PureRun.of(OVER_ROWS, rows).start()
    run.finish("a")

    assert run.state.execution.steps["a"].status is StepStatus.ACTIVE
    assert [command.step for command in run.open()] == ["a:evaluate_leave"]
    assert run.skipped() == []
    assert "a:evaluate_leave" not in run.state.execution.steps


def test_an_evaluation_changes_no_result_of_a_step() -> None:
    run = PureRun.of(OVER_ROWS, rows).start()
    run.finish("a")
    before = run.state.execution.steps["a"].result
    run.finish("a:evaluate_leave")

    assert run.state.execution.steps["a"].result == before
    assert set(run.state.execution.steps) == {"a", "b", "c"}


def test_two_planners_ask_for_the_same_evaluation() -> None:
    first, second = PureRun.of(OVER_ROWS, rows).to_the_end(), PureRun.of(OVER_ROWS, rows).to_the_end()

    assert first.events == second.events


SEQUENCE = """
workload: {seen: {old: 1}}
workflow:
- step: a
  tool: {kind: noop}
  set:
    ctx.first: "{{ output.data.rows[0].n }}"
    ctx.second: "{{ first + 1 }}"
    ctx.seen.rows: "{{ output.data.rows | length }}"
    step.mine: "{{ second * 10 }}"
  next:
    arcs:
    - {step: b, when: "{{ mine == 20 and seen.rows == 3 and seen.old == 1 }}", set: {ctx.from: "{{ mine }}"}}
    - {step: c}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""


def test_each_expression_of_the_sequence_sees_what_those_before_it_have_set() -> None:
    run = PureRun.of(SEQUENCE, rows).to_the_end()

    assert run.entered() == ["a", "b"]
    assert run.state.execution.variables == {
        "first": 1,
        "second": 2,
        "seen": {"old": 1, "rows": 3},
        "from": 20,
    }
    assert len(internal(run)) == 1, "the whole sequence is one evaluation"
    assert len(updates(run)) == 1


def test_a_large_value_becomes_a_variable_by_reference_and_can_be_read_again() -> None:
    run = PureRun.of(
        """
workflow:
- step: a
  tool: {kind: noop}
  set: {ctx.all: "{{ output.data.rows }}", ctx.n: "{{ all | length }}"}
  next: {arcs: [{step: b, when: "{{ all[1999] == 1999 }}"}]}
- {step: b, tool: {kind: noop}, set: {ctx.all.last: "{{ all[0] }}"}, next: {arcs: [{step: c, when: "{{ n > 5 }}"}]}}
- {step: c, tool: {kind: noop}}
""",
        lambda step, visit: {"rows": list(range(2000))},
    ).to_the_end()

    assert run.entered() == ["a", "b", "c"]
    assert updates(run)[0].values == {"n": 2000}
    assert list(updates(run)[0].refs or {}) == ["all"]
    assert run.state.execution.variables == {"n": 2000, "all": {"last": 0}}
    assert run.state.execution.variable_refs == {}


def test_a_value_that_is_too_large_for_an_event_is_set_by_a_worker_although_it_reads_only_the_workload() -> None:
    run = PureRun.of(
        """
workload: {words: [many, many]}
workflow:
- {step: a, tool: {kind: noop}, set: {ctx.text: "{{ words * 2000 }}"}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
"""
    ).to_the_end()

    assert run.entered() == ["a", "b"]
    assert list(run.state.execution.variable_refs) == ["text"]


def test_an_expression_that_fails_on_the_worker_fails_the_step_as_it_would_here() -> None:
    failing = OVER_ROWS.replace("rows | length > 2", "rows | length + none > 2")
    run = PureRun.of(failing, rows).to_the_end()

    assert run.state.execution.error is not None
    assert (run.state.execution.error["step"], run.state.execution.error["code"]) == ("a", "template.error")
    assert "output.data.rows | length + none" in run.state.execution.error["message"]


def test_an_error_arc_handles_an_expression_that_failed_on_the_worker() -> None:
    run = PureRun.of(
        """
workflow:
- step: a
  tool: {kind: noop}
  set: {ctx.kept: "{{ 1 }}"}
  next:
    arcs:
    - {step: b, when: "{{ output.data.rows | length + none }}"}
    - {step: c, when: "{{ error.code == 'template.error' and output.data.rows | length == 3 }}", set: {ctx.why: "{{ error.code }}"}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
""",  # noqa: E501
        rows,
    ).to_the_end()

    assert run.entered() == ["a", "c"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED
    assert run.state.execution.variables == {"kept": 1, "why": "template.error"}


def test_an_error_arc_that_reads_more_than_events_tell_is_evaluated_after_a_failed_call() -> None:
    run = PureRun.of(
        """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- step: b
  tool: {kind: noop}
  next: {arcs: [{step: c, when: "{{ output.status == 'error' and a.rows | length == 3 }}"}]}
- {step: c, tool: {kind: noop}}
""",
        lambda step, visit: {"kind": "unknown", "code": "BOOM", "message": "no"} if step == "b" else ROWS,
    ).to_the_end()

    assert run.entered() == ["a", "b", "c"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED


ADMITTING = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- step: b
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ a.rows | length > 2 }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
  next: {arcs: [{step: c}]}
- {step: c, tool: {kind: noop}}
"""  # noqa: E501


def test_an_admission_over_rows_is_evaluated_before_the_step_is_entered() -> None:
    run = PureRun.of(ADMITTING, rows).start()
    run.finish("a")

    assert [command.step for command in run.open()] == ["b:evaluate_admit"]
    assert (run.entered(), run.skipped()) == (["a"], [])
    assert run.go_on().entered() == ["a", "b", "c"]


def test_a_step_that_a_worker_finds_inadmissible_is_skipped_with_what_only_it_led_to() -> None:
    run = PureRun.of(ADMITTING, lambda step, visit: {"rows": []}).to_the_end()

    assert (run.entered(), run.skipped()) == (["a"], ["b", "c"])
    assert run.state.execution.status is ExecutionStatus.COMPLETED
    assert run.state.execution.arrivals == ()


def test_an_admission_that_fails_on_the_worker_fails_the_step() -> None:
    run = PureRun.of(ADMITTING.replace("a.rows | length", "a.rows | length + none"), rows).to_the_end()

    assert run.entered() == ["a", "b"]
    assert run.state.execution.error is not None
    assert (run.state.execution.error["step"], run.state.execution.error["code"]) == ("b", "template.error")


def test_the_failure_of_an_admission_may_itself_need_an_evaluation() -> None:
    run = PureRun.of(
        """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- step: b
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ a.rows | length + none }}", then: {allow: true}}]}}}
  next: {arcs: [{step: c, when: "{{ error.code == 'template.error' and a.rows | length == 3 }}"}]}
- {step: c, tool: {kind: noop}}
""",
        rows,
    ).to_the_end()

    assert [event.step for event in internal(run)] == ["b:evaluate_admit", "b:evaluate_leave"]
    assert run.entered() == ["a", "b", "c"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_a_step_that_was_denied_is_evaluated_anew_when_another_arc_leads_back_to_it() -> None:
    run = PureRun.of(
        """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- step: b
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ result.rows | length < 3 }}", then: {allow: false}}]}}}
  next:
    spec: {mode: inclusive}
    arcs: [{step: c, when: "{{ output.data.visit == 1 }}"}, {step: d, when: "{{ output.data.visit == 1 }}"}]
- {step: c, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: d, tool: {kind: noop}, next: {arcs: [{step: b}]}}
""",
        lambda step, visit: {"visit": visit, "rows": [] if step == "c" else [1, 2, 3]},
    ).to_the_end()

    asked = [event.command_id for event in internal(run)]
    assert len(asked) == len(set(asked)) == 3, "from a, from c, from d"
    assert run.entered() == ["a", "b", "c", "d", "b"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED


JOIN = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
- {step: a, tool: {kind: noop}, next: {arcs: [{step: j, when: "{{ output.data.rows | length == 3 }}"}]}}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: j}]}}
- step: j
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ result.rows | length != 3 }}", then: {allow: false}}]}}}
- {step: z, tool: {kind: noop}}
"""


@settings(max_examples=60, deadline=None)
@given(order=st.randoms(use_true_random=False))
def test_a_join_waits_for_evaluations_as_it_does_for_steps(order: Any) -> None:
    run = PureRun.of(JOIN, rows).to_the_end(pick=order.choice)

    assert sorted(run.entered()) == ["a", "b", "j", "s"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED
    assert not run.state.execution.arrivals


def test_the_final_step_waits_for_evaluations() -> None:
    run = PureRun.of("executor: {spec: {final_step: c}}" + OVER_ROWS, rows).start()
    run.finish("a")
    assert run.entered() == ["a"]

    assert run.go_on().entered() == ["a", "b", "c"]


def test_set_of_the_final_step_may_need_an_evaluation() -> None:
    run = PureRun.of(
        """
executor: {spec: {final_step: z}}
workflow:
- {step: a, tool: {kind: noop}}
- {step: z, tool: {kind: noop}, set: {ctx.n: "{{ a.rows | length }}"}, next: {arcs: [{step: a}]}}
""",
        rows,
    ).to_the_end()

    assert run.entered() == ["a", "z"]
    assert run.state.execution.variables == {"n": 3}


def test_now_on_the_worker_is_the_time_of_the_event_that_is_decided_on() -> None:
    asked = PureRun.of(
        OVER_ROWS.replace("step: c}]", "step: c}], spec: {mode: inclusive}").replace(
            "output.data.rows | length > 2", "now() == '2026-01-01T00:00:06.000000Z' and output.data.rows"
        ),
        rows,
    ).to_the_end()

    assert asked.evaluated[0].now == "2026-01-01T00:00:06.000000Z"
    assert "b" in asked.entered()


@pytest.mark.parametrize("silences", [1, 2])
def test_a_lost_worker_is_replaced_by_another_attempt_at_the_same_evaluation(silences: int) -> None:
    run = PureRun.of(OVER_ROWS, rows).start()
    run.finish("a")
    for _ in range(silences):
        run.silence("a:evaluate_leave")
    attempts = internal(run)

    assert [event.attempt for event in attempts] == list(range(1, silences + 2))
    assert len({event.command_id for event in attempts}) == silences + 1
    assert len({str(event.evaluation) for event in attempts}) == 1
    assert run.go_on().entered() == ["a", "b"]


HANDLED = """
workflow:
- step: a
  tool: {kind: noop}
  next:
    arcs:
    - {step: b, when: "{{ output.data.rows | length > 2 }}"}
    - {step: c, when: "{{ error.code == CODE }}"}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""


def test_attempts_are_bounded_and_using_them_up_fails_the_step_whose_error_arcs_still_apply() -> None:
    run = PureRun.of(HANDLED.replace("CODE", "'command.attempts_exhausted'"), rows).start()
    run.finish("a")
    for _ in range(3):
        run.silence("a:evaluate_leave")

    assert run.entered() == ["a", "c"]
    assert run.go_on().state.execution.status is ExecutionStatus.COMPLETED


def test_data_that_are_gone_fail_the_step_with_the_code_that_says_so() -> None:
    gone: JsonObject = {
        "kind": "storage_access",
        "code": "REFERENCE_NOT_AVAILABLE",
        "retryable": True,
        "message": "gone",
    }
    run = PureRun.of(OVER_ROWS, rows).start()
    run.finish("a")
    run.fail("a:evaluate_leave", gone)

    assert run.state.execution.status is ExecutionStatus.FAILED
    assert run.state.execution.error == {
        "step": "a",
        "kind": "storage_access",
        "code": "REFERENCE_NOT_AVAILABLE",
        "message": "gone",
    }
    handled = PureRun.of(HANDLED.replace("CODE", "'REFERENCE_NOT_AVAILABLE'"), rows).start()
    handled.finish("a")
    handled.fail("a:evaluate_leave", gone)
    assert handled.entered() == ["a", "c"]


def test_an_answer_that_lacks_a_value_fails_the_step_instead_of_guessing() -> None:
    run = PureRun.of(OVER_ROWS, rows).start()
    run.finish("a")
    command = run.command("a:evaluate_leave")
    run._close(command, {"status": "ok", "reference": None, "parent_ref": None, "context": {"evaluation": {}}})

    assert run.state.execution.error is not None
    assert run.state.execution.error["code"] == "template.error"


def test_fail_fast_applies_to_what_an_evaluation_finds() -> None:
    run = PureRun.of(
        """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
- step: a
  tool: {kind: noop}
  spec: {policy: {failure: {mode: fail_fast}}}
  next: {arcs: [{step: b, when: "{{ output.data.rows | length + none }}"}]}
- {step: b, tool: {kind: noop}}
""",
        rows,
    ).start()
    for node in ("s", "a", "a:evaluate_leave"):
        run.finish(node)

    assert run.state.execution.status is ExecutionStatus.FAILED


def test_a_step_may_be_called_as_an_internal_command_is() -> None:
    run = PureRun.of(
        OVER_ROWS.replace("step: b", "step: 'a:evaluate_leave'").replace("name: b", "name: x"), rows
    ).to_the_end()

    assert run.entered() == ["a", "a:evaluate_leave"]
    assert len({event.command_id for event in run.events if isinstance(event, CommandIssued)}) == 3
    assert len(prune(run.state).commands) == 3


def test_every_event_about_an_evaluation_is_small() -> None:
    run = PureRun.of(SEQUENCE, rows).to_the_end()
    (issued,) = internal(run)

    assert set(issued.evaluation or {}) == {"place", "step", "activation", "cause", "now"}
    assert (issued.evaluation or {})["place"] == Place.LEAVE


@st.composite
def workflows(draw: st.DrawFn) -> str:
    size = draw(st.integers(1, 6))
    names = [f"s{number}" for number in range(size)]
    lines = ["workflow:"]
    expressions = ["output.data.n < {limit}", "output.data.rows | length < {limit}", "output.data.rows | length + none"]
    for name in names:
        targets = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
        mode = draw(st.sampled_from(["exclusive", "inclusive"]))
        arcs = []
        for target in targets:
            expression = draw(st.sampled_from(expressions)).format(limit=draw(st.integers(1, 4)))
            arcs.append(f'{{step: {target}, when: "{{{{ {expression} }}}}"}}')
        admit = draw(st.sampled_from(["true", "steps.s0.rows | length < 3", "steps.s0.n < 3"]))
        rules = f'{{when: "{{{{ {admit} }}}}", then: {{allow: true}}}}, {{else: {{then: {{allow: false}}}}}}'
        lines.append(
            f"- {{step: {name}, tool: {{kind: noop}}, spec: {{policy: {{admit: {{rules: [{rules}]}}}}}}, "
            f"next: {{spec: {{mode: {mode}}}, arcs: [{', '.join(arcs)}]}}}}"
        )
    return "\n".join(lines)


def ends(run: PureRun) -> list[Event]:
    return [event for event in run.events if type(event).__name__ in ("PlaybookCompleted", "PlaybookFailed")]


@settings(max_examples=150, deadline=None)
@given(yaml=workflows(), order=st.randoms(use_true_random=False))
def test_any_graph_whose_conditions_need_data_ends_exactly_once_in_any_order(yaml: str, order: Any) -> None:
    run = PureRun.of(yaml, lambda step, visit: {"n": visit, "rows": [1] * visit}).to_the_end(pick=order.choice)

    assert len(ends(run)) == 1
    assert run.events[-1] is ends(run)[0]
    assert not run.state.execution.arrivals
    exits = [(event.step, event.activation) for event in run.events if isinstance(event, StepExited)]
    assert len(exits) == len(set(exits)) == len(run.entered())


def test_a_step_whose_chunks_are_all_taken_is_evaluated_once_whatever_happens_beside_it() -> None:
    run = PureRun.of(
        """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
- step: a
  tool: {kind: postgres, auth: x, query: q, spec: {stream: {chunk_rows: 3}}}
  next: {arcs: [{step: x, on: call.partial}, {step: z, when: "{{ output.data.rows | length == 3 }}"}]}
- {step: x, tool: {kind: noop}}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: c}]}}
- {step: c, tool: {kind: noop}}
- {step: z, tool: {kind: noop}}
""",
        rows,
    ).start()
    run.finish("s")
    command = run.command("a")
    run.happens(
        CallPartial(
            command_id=command.command_id,
            step="a",
            task="a_task",
            call=1,
            chunk_index=0,
            row_count=3,
            has_more=False,
            payload_ref=run.store(ROWS),
            queued=True,
        )
    )
    for node in ("a", "x", "b", "c", "a:evaluate_leave", "z"):
        run.finish(node)

    assert [event.step for event in internal(run)] == ["a:evaluate_leave"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED
    assert run.entered() == ["s", "a", "b", "x", "c", "z"]


def test_answers_are_forgotten_when_they_have_been_used() -> None:
    run = PureRun.of(SEQUENCE, rows).start()
    run.finish("a")
    run.finish("a:evaluate_leave")

    assert all(command.answer is None for command in run.state.commands.values())
    admitted = PureRun.of(ADMITTING, rows).to_the_end()
    assert all(command.answer is None for command in admitted.state.commands.values())


def test_an_evaluation_that_ends_during_a_pause_is_decided_on_when_the_execution_is_resumed() -> None:
    run = PureRun.of(ADMITTING, rows).start()
    run.finish("a")
    run.happens(ExecutionPaused(reason="", paused_by="p"))
    run.finish("b:evaluate_admit")
    assert run.entered() == ["a"]

    run.happens(ExecutionResumed(reason="", resumed_by="p"))

    assert run.go_on().entered() == ["a", "b", "c"]
    assert len(internal(run)) == 1


@pytest.mark.parametrize("reads", ["n", "rows | length"], ids=["in the planner", "by a worker"])
def test_a_step_that_fails_at_its_entry_has_that_failure_as_its_result(reads: str) -> None:
    run = PureRun.of(
        """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- step: b
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ (a.READS) + missing_at(visit) }}", then: {allow: true}}]}}}
  next: {arcs: [{step: seen, when: "{{ error }}"}, {step: b}]}
- step: seen
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ b.error.code != 'template.error' }}", then: {allow: false}}]}}}
""".replace("READS", reads).replace("missing_at(visit)", "(none if b is defined else 0)"),
        lambda step, visit: {"n": 1, "rows": [1]},
    ).to_the_end()

    assert run.entered() == ["a", "b", "b", "seen"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED
    result = run.state.execution.steps["b"].result or {}
    assert (result["status"], result["context"]["error"]["code"]) == ("error", "template.error")
