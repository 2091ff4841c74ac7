"""Deadlines: counted by the log's clock, recorded once, void when the thing ended in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from noetl_contracts.subjects import CANCEL_SUBJECT, STOP_SUBJECT
from noetl_core.append import Fence
from noetl_core.canonical import decode
from noetl_core.commands.state import CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.errors import Fenced, LeaseLost, NoetlError, TooEarly
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.commands import Heartbeats
from noetl_core.timestamps import format_time
from noetl_testkit.planning import NOON, WORKER, Planning, ok
from noetl_testkit.until import until

SLOW = """
workflow:
- step: slow
  spec: {timeout: 5}
  tool: {kind: noop}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
"""
HANDLED = """
workflow:
- step: slow
  spec: {timeout: 5}
  tool: {kind: noop}
  next: {arcs: [{step: rescue, when: "{{ error.code == 'step.timeout' }}"}, {step: after}]}
- {step: after, tool: {kind: noop}}
- {step: rescue, tool: {kind: noop}}
"""
WHOLE = """
executor: {spec: {timeout: 60}}
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, spec: {timeout: 5}, tool: {kind: noop}}
"""


@pytest.fixture
async def planning() -> AsyncIterator[Planning]:
    planning = Planning()
    yield planning
    await planning.actors.stop()


def hints(planning: Planning) -> list[tuple[str, object]]:
    told = [hint for hint in planning.log.hints if hint.subject.startswith("noetl.control.")]
    return [(hint.subject, decode(hint.body)) for hint in told]


async def pass_deadlines(planning: Planning, seconds: float) -> int:
    recorded = await planning.actors.pass_deadlines(planning.execution_id, through=NOON + timedelta(seconds=seconds))
    return recorded.passed


async def test_a_step_that_takes_too_long_fails_and_its_execution_with_it(planning: Planning) -> None:
    await planning.start(SLOW)
    command = await planning.claim("slow")
    planning.pass_time(5)

    assert await pass_deadlines(planning, 5) == 1

    state = planning.state
    assert state.execution.status is ExecutionStatus.FAILED
    assert state.execution.error is not None
    assert (state.execution.error["code"], state.execution.error["step"]) == ("step.timeout", "slow")
    ended = ["deadline.passed", "step.exit", "step.skipped", "workflow.failed", "playbook.failed"]
    assert planning.types()[-5:] == ended
    assert state.commands[command.key.command_id].status is CommandStatus.STOPPED
    assert hints(planning)[-1] == (CANCEL_SUBJECT, {"execution_id": str(planning.execution_id)})


async def test_an_error_arc_handles_a_timeout_and_the_late_result_does_not_count(planning: Planning) -> None:
    await planning.start(HANDLED)
    command = await planning.claim("slow")
    planning.pass_time(6)
    await pass_deadlines(planning, 5)

    beats = await planning.actors.heartbeat(WORKER, [command.key])
    with pytest.raises(LeaseLost):
        await planning.complete(command)
    await planning.run("rescue")

    assert beats.lost == {command.key}
    stop = {"execution_id": str(planning.execution_id), "step": "slow", "activation": 1}
    assert hints(planning) == [(STOP_SUBJECT, stop)]
    assert planning.entered() == ["slow", "rescue"]
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_nobody_can_record_a_deadline_before_its_time(planning: Planning) -> None:
    await planning.start(SLOW)
    planning.pass_time(4.9)

    with pytest.raises(TooEarly):
        await pass_deadlines(planning, 5)

    assert "deadline.passed" not in planning.types()


async def test_a_deadline_that_became_void_changes_nothing(planning: Planning) -> None:
    await planning.start(SLOW)
    await planning.run("slow")
    before = planning.types()
    planning.pass_time(5)

    assert await pass_deadlines(planning, 5) == 0

    assert planning.types() == before


async def test_a_deadline_passes_once_however_often_it_is_told(planning: Planning) -> None:
    await planning.start(HANDLED)
    planning.pass_time(5)

    told = [await pass_deadlines(planning, 5) for _ in range(3)]

    assert told == [1, 0, 0]
    assert planning.types().count("deadline.passed") == 1


async def test_a_command_that_nobody_claimed_is_stopped_too(planning: Planning) -> None:
    await planning.start(HANDLED)
    key = planning.issued("slow")
    planning.pass_time(5)
    await pass_deadlines(planning, 5)

    (outcome,) = await planning.actors.claim(WORKER, [key])

    assert outcome.refusal == "command.closed"
    assert hints(planning) == []


async def test_an_execution_that_takes_too_long_fails_whatever_runs(planning: Planning) -> None:
    await planning.start(WHOLE)
    await planning.claim("a")
    planning.pass_time(61)

    assert await pass_deadlines(planning, 60) == 1

    error = planning.state.execution.error
    assert error is not None
    assert error["code"] == "execution.timeout"
    assert planning.types()[-3:] == ["deadline.passed", "workflow.failed", "playbook.failed"]
    assert hints(planning) == [(CANCEL_SUBJECT, {"execution_id": str(planning.execution_id)})]


async def test_the_earlier_of_two_passed_deadlines_is_told_first_and_makes_the_other_void(planning: Planning) -> None:
    await planning.start(WHOLE)
    planning.pass_time(50)
    await planning.run("a")
    planning.pass_time(20)

    assert await pass_deadlines(planning, 70) == 1

    assert (planning.state.execution.error or {})["code"] == "step.timeout"


async def test_a_planner_that_comes_later_decides_what_the_first_one_left_undecided(planning: Planning) -> None:
    await planning.start(HANDLED)
    await planning.actors.stop()
    planning.pass_time(5)
    passed = DeadlinePassed(what="step", step="slow", activation=1, deadline=format_time(planning.now))
    await planning.append(passed, key="deadline/x")

    await planning.replace_planner()

    await until(lambda: planning.entered() == ["slow", "rescue"])


async def test_seconds_may_be_a_template_over_variables_and_earlier_results(planning: Planning) -> None:
    await planning.start(
        """
executor: {spec: {timeout: "{{ limit * 10 }}"}}
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}, spec: {timeout: "{{ a.seconds + limit }}"}}
""",
        limit=7,
    )
    await planning.run("a", ok(seconds=1.5))

    assert planning.state.execution.deadline == NOON + timedelta(seconds=70)
    assert planning.state.execution.steps["b"].deadline == NOON + timedelta(seconds=8.5)


@pytest.mark.parametrize("template", ["{{ 'soon' }}", "{{ 0 }}", "{{ -1 }}", "{{ nothing }}", "{{ 1 / 0 }}"])
async def test_a_timeout_that_is_no_number_of_seconds_fails_the_step(planning: Planning, template: str) -> None:
    await planning.start(f'workflow:\n- {{step: a, tool: {{kind: noop}}, spec: {{timeout: "{template}"}}}}\n')

    error = planning.state.execution.error
    assert error is not None
    assert (error["code"], error["step"]) == ("template.error", "a")
    assert "command.issued" not in planning.types()


async def test_a_timeout_of_the_execution_that_is_no_number_fails_it(planning: Planning) -> None:
    await planning.start('executor: {spec: {timeout: "{{ no }}"}}\nworkflow:\n- {step: a, tool: {kind: noop}}\n')

    assert (planning.state.execution.error or {})["code"] == "template.error"
    assert planning.types()[1:] == ["workflow.initialized", "workflow.failed", "playbook.failed"]


async def test_the_final_step_has_a_deadline_of_its_own_and_runs_after_a_step_s_timeout(planning: Planning) -> None:
    await planning.start(
        """
executor: {spec: {final_step: tidy}}
workflow:
- {step: slow, tool: {kind: noop}, spec: {timeout: 5}}
- {step: tidy, tool: {kind: noop}, spec: {timeout: 3}}
"""
    )
    planning.pass_time(5)
    await pass_deadlines(planning, 5)
    planning.pass_time(3)

    assert planning.entered() == ["slow", "tidy"]
    assert await pass_deadlines(planning, 8) == 1
    assert (planning.state.execution.error or {})["step"] == "slow"


async def test_each_activation_has_its_own_time(planning: Planning) -> None:
    await planning.start(
        """
workflow:
- step: again
  tool: {kind: noop}
  spec: {timeout: 5}
  next: {arcs: [{step: again, when: "{{ output.data.more }}"}]}
"""
    )
    planning.pass_time(4)
    await planning.run("again", ok(more=True))
    planning.pass_time(4)

    assert await pass_deadlines(planning, 8) == 0
    planning.pass_time(1)
    assert await pass_deadlines(planning, 9) == 1


async def test_a_late_result_does_not_count_while_a_worker_evaluates_who_handles_the_timeout(
    planning: Planning,
) -> None:
    await planning.start(
        """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: slow}]}}
- step: slow
  spec: {timeout: 5}
  tool: {kind: noop}
  next: {arcs: [{step: b, when: "{{ error and a.rows | sum == 6 }}"}]}
- {step: b, tool: {kind: noop}}
"""
    )
    unselected = {"status": "ok", "reference": None, "parent_ref": None, "context": {"unselected": ["/rows"]}}
    await planning.run("a", unselected)
    late = await planning.claim("slow")
    planning.pass_time(5)
    await pass_deadlines(planning, 5)

    with pytest.raises(LeaseLost):
        await planning.complete(late)

    assert planning.types()[-1] == "command.issued"
    assert await pass_deadlines(planning, 5) == 0
    answer = {"evaluation": {"error/arcs/0/when": {"is": True}}}
    await planning.run("slow:evaluate_leave", {**unselected, "context": answer})
    assert planning.entered() == ["a", "slow", "b"]


@pytest.mark.parametrize("seed", range(10))
async def test_a_result_and_a_deadline_that_meet_lead_to_one_exit_whoever_plans(planning: Planning, seed: int) -> None:
    """Two planners that both believe to own the shard: one is asked to complete, the other that time is up."""
    await planning.start(HANDLED)
    command = await planning.claim("slow")
    planning.pass_time(5)
    other = planning.planner()
    other.expect(planning.execution_id, len(planning.events()), terminal=False)

    async def complete() -> None:
        for _ in range(seed % 3):
            await asyncio.sleep(0)
        with suppress(NoetlError):
            await planning.complete(command)

    async def give_up() -> None:
        for _ in range(seed % 4):
            await asyncio.sleep(0)
        await other.pass_deadlines(planning.execution_id, through=planning.now)

    await asyncio.gather(complete(), give_up())

    types = planning.types()
    assert types.count("step.exit") == 1
    came_in_time = "command.completed" in types
    assert planning.entered() == ["slow", "after" if came_in_time else "rescue"]
    assert ("deadline.passed" in types) == (not came_in_time)
    await other.stop()


@pytest.mark.parametrize("asked", ["pass_deadlines", "abandon"])
async def test_who_was_deposed_has_nothing_done_and_harms_nobody_else(planning: Planning, asked: str) -> None:
    await planning.start(SLOW)
    command = await planning.claim("slow")
    held = planning.state.commands[command.key.command_id]
    planning.pass_time(60)
    deposed = Fence(role="reaper", shard=0, epoch=1)  # nobody was elected here yet, so that it is at 0
    before = planning.types()

    asking: Coroutine[Any, Any, object]
    if asked == "abandon":
        assert held.lease_until is not None
        asking = planning.actors.abandon(
            command.key,
            expected_aggregate_version=held.aggregate_version,
            lease_until=held.lease_until,
            reclaimer="urn:noetl:reaper:r-0",
            fence=deposed,
        )
    else:
        asking = planning.actors.pass_deadlines(
            planning.execution_id, through=planning.now, reclaimer="urn:noetl:reaper:r-0", fence=deposed
        )
    refusal, beats = await asyncio.gather(
        asking, planning.actors.heartbeat(WORKER, [command.key]), return_exceptions=True
    )

    assert isinstance(refusal, Fenced)
    assert refusal.facts["role"] == "reaper"
    assert isinstance(beats, Heartbeats)
    assert not beats.lost | beats.unanswered
    assert planning.types() == [*before, "command.heartbeat"]
    assert await pass_deadlines(planning, 60) == 1  # the planner goes on, for whoever may ask
