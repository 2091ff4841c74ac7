"""One firing is one activation, joins and the final step run once, and results stay while they are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from noetl_core.executions.events import StepEntered, StepExited
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import prune
from noetl_core.state_json import decode_state, encode_state
from noetl_testkit.pure_run import PureRun

SIDE_BRANCH = """
workflow:
- step: a
  tool: {kind: noop}
  next: {spec: {mode: inclusive}, arcs: [{step: a, when: "{{ output.data.n < 3 }}"}, {step: b}]}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: c}]}}
- {step: c, tool: {kind: noop}}
"""


def visits(step: str, visit: int) -> dict[str, Any]:
    return {"n": visit}


def running(run: PureRun) -> list[str]:
    return sorted(command.step for command in run.open())


def test_a_step_is_not_entered_again_before_those_that_it_led_to_have_read_its_result() -> None:
    run = PureRun.of(SIDE_BRANCH, visits).start()
    run.finish("a")
    assert running(run) == ["b"]
    run.finish("b")

    assert running(run) == ["a", "c"], "only the next step reads it by right: those behind it go on beside"
    run.finish("a")
    assert running(run) == ["c"], "and the next step waits for them in its turn"
    run.finish("c")
    assert running(run) == ["b"]
    run.go_on()
    assert (run.entered().count("b"), run.entered().count("c")) == (3, 3)
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_arrivals_that_ask_for_the_same_are_counted_so_that_state_does_not_grow_with_them() -> None:
    arcs = ", ".join(["{step: b}"] * 50)
    playbook = f"""
workflow:
- {{step: a, tool: {{kind: noop}}, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}
- {{step: b, tool: {{kind: noop}}}}
"""
    run = PureRun.of(playbook, visits).start()
    run.finish("a")

    (waiting,) = run.state.execution.arrivals
    assert waiting.times == 49
    for _ in range(20):
        run.state = decode_state(encode_state(prune(run.state)))
        run.finish("b")
    assert run.state.execution.arrivals[0].times == 29
    run.go_on()
    assert run.entered().count("b") == 50
    assert {len(event.consumes) for event in run.events if isinstance(event, StepEntered)} == {1}


def test_whoever_waits_for_the_same_step_gets_a_turn() -> None:
    playbook = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: x}, {step: y}]}}
- {step: x, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: s}, {step: s}, {step: s}]}}
- {step: y, tool: {kind: noop}, next: {arcs: [{step: s}]}}
"""
    run = PureRun.of(
        playbook.replace(
            "[{step: x}, {step: y}]",
            '[{step: x, when: "{{ output.data.n == 1 }}"}, {step: y, when: "{{ output.data.n == 1 }}"}]',
        ),
        visits,
    ).start()
    run.go_on()

    causes = [event.cause_step for event in run.events if isinstance(event, StepEntered) and event.step == "s"]
    assert causes == ["", "x", "y", "x", "x"]


def test_the_final_step_waits_for_the_end_and_knows_which_arc_led_to_it_last() -> None:
    playbook = """
executor: {spec: {final_step: z}}
workflow:
- {step: a, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: z}, {step: b}]}}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: z}, {step: a}]}}
- {step: z, tool: {kind: noop}, next: {arcs: [{step: b}]}}
"""
    run = PureRun.of(playbook, visits).start()
    run.finish("a")
    assert running(run) == ["b"]
    run.go_on()

    assert run.entered() == ["a", "b", "z"]
    last = [event for event in run.events if isinstance(event, StepEntered)][-1]
    assert (last.cause_step, last.consumes) == ("b", ("a", "b"))


def test_a_failure_of_routing_stands_over_the_result_of_the_call() -> None:
    playbook = """
workflow:
- step: a
  tool: {kind: noop}
  next: {arcs: [{step: b, when: "{{ output.data.n / 0 }}"}, {step: h, when: "{{ error.code == 'template.error' }}"}]}
- {step: b, tool: {kind: noop}}
- {step: h, tool: {kind: noop}}
"""
    run = PureRun.of(playbook, visits).start()
    run.finish("a")

    (exited,) = [event for event in run.events if isinstance(event, StepExited)]
    assert exited.amends
    result = run.state.execution.steps["a"].result or {}
    assert (result["status"], result["context"]["error"]["code"]) == ("error", "template.error")
    assert result["context"]["select"] == {"/n": 1}, "what the call gave is still told"


def test_a_step_runs_a_hundred_thousand_times_and_then_the_execution_fails() -> None:
    run = PureRun.of("workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: a}]}}]", visits).start()
    steps = run.state.execution.steps
    many = replace(steps["a"], activation=99_999)
    command = replace(run.open()[0], activation=99_999)
    run.state = replace(
        run.state,
        execution=replace(run.state.execution, steps={"a": many}),
        commands={command.command_id: command},
    )
    run.finish("a")
    assert run.state.execution.steps["a"].activation == 100_000
    run.finish("a")

    assert run.state.execution.status is ExecutionStatus.FAILED
    assert (run.state.execution.error or {})["code"] == "execution.visit_cap"
