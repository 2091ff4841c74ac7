"""Where two features meet in one execution: pauses and evaluations, failures and loops, deadlines and late answers."""

from __future__ import annotations

from typing import Any

from noetl_core.children.events import CommandParked
from noetl_core.commands.events import CallDone, CommandCompleted
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import open_deadlines
from noetl_core.executions.events import CtxUpdated, StepExited
from noetl_core.executions.state import ExecutionStatus
from noetl_core.loops.events import LoopDone
from noetl_core.steering.events import ExecutionPaused, ExecutionResumed
from noetl_core.timestamps import format_time
from noetl_testkit.pure_run import PureRun

ADMITTED_BY_ROWS = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: x}]}}
- {step: a, tool: {kind: noop}}
- step: x
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ s.rows | length > 1 }}", then: {allow: true}}]}}}
"""


def rows(step: str, visit: int) -> dict[str, Any]:
    return {"rows": [1, 2]}


def test_a_step_whose_admission_was_evaluated_during_a_pause_is_not_asked_about_again() -> None:
    run = PureRun.of(ADMITTED_BY_ROWS, rows).start()
    run.finish("s")
    run.happens(ExecutionPaused(reason="", paused_by="ada"))
    run.finish("a")
    run.finish("x:evaluate_admit")
    run.happens(ExecutionResumed(reason="", resumed_by="ada"))

    assert [command.step for command in run.open()] == ["x"]
    run.finish("x")
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_an_evaluator_that_is_lost_during_a_pause_is_replaced_once() -> None:
    run = PureRun.of(ADMITTED_BY_ROWS, rows).start()
    run.finish("s")
    run.happens(ExecutionPaused(reason="", paused_by="ada"))
    run.silence("a")
    run.silence("x:evaluate_admit")
    run.happens(ExecutionResumed(reason="", resumed_by="ada"))

    assert [command.step for command in run.open()] == ["a", "x:evaluate_admit"]
    run.go_on()
    assert run.entered() == ["s", "a", "x"]


def test_a_loop_that_waits_for_its_collection_ends_with_the_execution() -> None:
    boom = {"code": "E", "message": "no"}
    playbook = """
workflow:
- {step: a, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}]}}
- {step: b, tool: {kind: noop}, loop: {in: "{{ result.rows }}"}}
- {step: c, tool: {kind: noop}, spec: {policy: {failure: {mode: fail_fast}}}}
"""
    run = PureRun.of(playbook, lambda step, visit: boom if step == "c" else {"rows": [1]}).start()
    run.finish("a")
    run.finish("c")

    assert run.state.execution.status is ExecutionStatus.FAILED
    assert [(one.step, one.status) for one in run.events if isinstance(one, LoopDone)] == [("b", "error")]


def test_what_follows_the_last_silent_attempt_sees_its_failure_as_it_sees_any_other() -> None:
    playbook = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ output.status == 'error' }}"}]}}
- step: b
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ result is not defined }}", then: {allow: false}}]}}}
"""
    run = PureRun.of(playbook).start()
    for _ in range(run.plan.max_attempts):
        run.silence("a")
    run.results["a"] = {"status": "error"}
    run.go_on()

    assert run.entered() == ["a", "b"]


def test_the_late_answer_of_an_evaluation_that_was_stopped_changes_nothing() -> None:
    playbook = """
workflow:
- step: a
  tool: {kind: noop}
  spec: {timeout: 30}
  next: {arcs: [{step: b, when: "{{ result.rows | length > 1 }}"}, {step: c, when: "{{ error.code == big }}"}]}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""
    run = PureRun.of(playbook, rows).start()
    run.happens(CtxUpdated(step="a", values={}, refs={"big": run.store("step.timeout").to_json()}))
    run.finish("a")
    stopped = run.command("a:evaluate_leave")
    run.happens(DeadlinePassed(what="step", deadline="2026-01-01T00:00:33.000000Z", step="a", activation=1))
    ids: dict[str, Any] = {"command_id": stopped.command_id, "step": stopped.step}
    run.happens(CallDone(**ids, result=run.answer(stopped)))
    run.happens(CommandCompleted(**ids, worker_id="w"))

    assert not [one for one in run.events if isinstance(one, StepExited)]
    run.go_on()
    assert run.entered() == ["a", "c"]


def test_calls_whose_time_is_over_during_a_pause_are_not_held_one_by_one() -> None:
    playbook = """
workflow:
- {step: a, tool: {kind: noop}, loop: {in: [1, 2, 3], spec: {mode: parallel, max_in_flight: 3}}}
"""
    run = PureRun.of(playbook).start()
    stored = run.store({})
    for command in run.open():
        parked = CommandParked(
            **command.of_command,
            worker_id="w",
            call_id=command.command_id,
            child_execution_id="9",
            payload_ref=stored,
            timeout_seconds=5.0,
        )
        run.happens(parked)
    run.happens(ExecutionPaused(reason="", paused_by="ada"))
    for due in list(open_deadlines(run.state.execution, run.state.commands)):
        at = format_time(due.at)
        run.happens(DeadlinePassed(what=due.what.value, deadline=at, step="a", activation=1, command_id=due.command_id))

    assert run.state.execution.held == ()
    assert [command.is_claimable for command in run.open()] == [True, True, True]
    run.happens(ExecutionResumed(reason="", resumed_by="ada"))
    run.go_on()
    assert run.state.execution.status is ExecutionStatus.COMPLETED
