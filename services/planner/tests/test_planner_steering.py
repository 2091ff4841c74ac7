"""Pausing and resuming: what runs ends and is recorded, and everything that follows from it waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import pytest
from noetl_core.errors import AlreadyTerminal, ExecutionIsPaused, NotPaused, VersionConflict
from noetl_core.execution_view import changed_commands, silent_after
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.commands import CommandKey
from noetl_core.ports.steering import SteerAction, Steered
from noetl_core.state_json import decode_state, encode_state
from noetl_testkit.planning import NOON, WORKER, Planning, ok
from noetl_testkit.until import until

LINE = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
"""
JOIN = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
- {step: a, tool: {kind: noop}, next: {arcs: [{step: j}]}}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: j}]}}
- {step: j, tool: {kind: noop}}
"""


@pytest.fixture
async def planning() -> AsyncIterator[Planning]:
    planning = Planning()
    yield planning
    await planning.actors.stop()


async def pause(planning: Planning) -> Steered:
    return await planning.actors.steer(planning.execution_id, SteerAction.PAUSE, by="ada", reason="lunch")


async def resume(planning: Planning) -> Steered:
    return await planning.actors.steer(planning.execution_id, SteerAction.RESUME, by="bob", reason="")


async def test_what_runs_ends_and_what_follows_waits_until_the_execution_is_resumed(planning: Planning) -> None:
    await planning.start(LINE)
    command = await planning.claim("a")

    paused = await pause(planning)
    await planning.complete(command)

    assert paused.status == "PAUSED"
    assert planning.types()[-2:] == ["call.done", "command.completed"]
    assert planning.state.execution.status.value == "PAUSED"

    resumed = await resume(planning)

    assert resumed.status == "RUNNING"
    assert planning.types()[-4:] == ["execution.resumed", "step.exit", "step.enter", "command.issued"]
    await planning.run("b")
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_who_did_it_and_why_is_in_the_log(planning: Planning) -> None:
    await planning.start(LINE)
    await pause(planning)
    await resume(planning)

    paused, resumed = (one.envelope for one in planning.events()[-2:])
    assert (paused.event_type, paused.meta["paused_by"], paused.meta["reason"]) == ("execution.paused", "ada", "lunch")
    assert (resumed.event_type, resumed.meta["resumed_by"]) == ("execution.resumed", "bob")


async def test_nothing_is_granted_while_paused_and_workers_are_woken_afterwards(planning: Planning) -> None:
    await planning.start(LINE)
    await pause(planning)
    key = planning.issued("a")
    hints = len(planning.log.hints)

    (outcome,) = await planning.actors.claim(WORKER, [key])

    assert outcome.refusal == "execution.paused"
    assert list(planning.actors.hints_for_claimable()) == []
    await resume(planning)
    assert len(planning.log.hints) == hints + 1
    assert (await planning.claim("a")).key == key


async def test_a_claim_that_is_repeated_while_paused_is_answered(planning: Planning) -> None:
    await planning.start(LINE)
    command = await planning.claim("a")
    await pause(planning)

    assert (await planning.claim("a")).key == command.key
    assert (await planning.actors.heartbeat(WORKER, [command.key])).lost == frozenset()


async def test_repeating_either_is_harmless(planning: Planning) -> None:
    await planning.start(LINE)

    paused = [await pause(planning), await pause(planning)]
    resumed = [await resume(planning), await resume(planning)]

    assert [one.status for one in (*paused, *resumed)] == ["PAUSED", "PAUSED", "RUNNING", "RUNNING"]
    assert [name for name in planning.types() if name.startswith("execution.")] == [
        "execution.paused",
        "execution.resumed",
    ]


async def test_what_never_was_paused_cannot_be_resumed_and_what_has_ended_cannot_be_paused(planning: Planning) -> None:
    await planning.start(LINE)

    with pytest.raises(NotPaused):
        await resume(planning)
    await planning.run("a")
    await planning.run("b")
    with pytest.raises(AlreadyTerminal):
        await pause(planning)


async def test_several_ends_are_decided_in_their_order_in_one_append(planning: Planning) -> None:
    await planning.start(JOIN)
    await planning.run("s")
    commands = [await planning.claim(step) for step in ("a", "b")]
    await pause(planning)
    for command in reversed(commands):
        await planning.complete(command)

    await resume(planning)

    exits = [one.envelope.node_name for one in planning.events() if one.envelope.event_type == "step.exit"]
    assert exits == ["s", "b", "a"]
    assert planning.entered() == ["s", "a", "b", "j"]


async def test_another_planner_knows_what_is_held_back(planning: Planning) -> None:
    await planning.start(JOIN)
    await planning.run("s")
    commands = [await planning.claim(step) for step in ("a", "b")]
    await pause(planning)
    for command in commands:
        await planning.complete(command)

    await planning.replace_planner()
    await resume(planning)
    await planning.replace_planner()

    await until(lambda: planning.entered() == ["s", "a", "b", "j"])
    await planning.run("j")
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_what_is_held_back_survives_in_a_stored_state(planning: Planning) -> None:
    await planning.start(LINE)
    command = await planning.claim("a")
    await pause(planning)
    await planning.complete(command)

    state = planning.state

    assert [cause.event_type for cause in state.execution.held] == ["command.completed"]
    assert decode_state(encode_state(state)) == state


async def test_nobody_is_given_up_before_the_pause_is_over(planning: Planning) -> None:
    await planning.start(LINE)
    command = await planning.claim("a")
    await pause(planning)
    planning.pass_time(31)
    version = planning.state.commands[command.key.command_id].aggregate_version
    abandon = partial(
        planning.actors.abandon,
        command.key,
        expected_aggregate_version=version,
        lease_until=NOON + timedelta(seconds=30),
        reclaimer="urn:reaper",
    )
    assert silent_after(planning.state, planning.state.commands[command.key.command_id]) is None
    with pytest.raises(ExecutionIsPaused):
        await abandon()
    assert planning.types()[-1] == "execution.paused"

    before = planning.state
    await resume(planning)

    resumed = planning.state.commands[command.key.command_id]
    assert silent_after(planning.state, resumed) == NOON + timedelta(seconds=30)
    assert [one.command_id for one in changed_commands(before, planning.state)] == [command.key.command_id]
    await abandon()
    assert planning.types()[-2:] == ["command.abandoned", "command.issued"]
    assert planning.issued("a") != command.key


async def test_the_time_of_an_execution_runs_on_while_it_is_paused(planning: Planning) -> None:
    await planning.start("executor: {spec: {timeout: 60}}" + LINE)
    await pause(planning)
    planning.pass_time(60)

    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)

    assert (planning.state.execution.error or {})["code"] == "execution.timeout"


async def test_the_time_of_a_step_runs_on_while_something_of_it_runs(planning: Planning) -> None:
    await planning.start("workflow: [{step: a, spec: {timeout: 5}, tool: {kind: noop}}]")
    command = await planning.claim("a")
    await pause(planning)
    planning.pass_time(5)
    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)

    assert planning.types()[-1] == "deadline.passed"
    assert (await planning.actors.heartbeat(WORKER, [command.key])).lost == {command.key}
    await resume(planning)
    assert (planning.state.execution.error or {})["code"] == "step.timeout"


async def test_a_step_that_ended_in_time_is_not_late_because_of_a_pause(planning: Planning) -> None:
    await planning.start("workflow: [{step: a, spec: {timeout: 5}, tool: {kind: noop}}]")
    command = await planning.claim("a")
    await pause(planning)
    await planning.complete(command, ok(n=1))
    planning.pass_time(5)

    told = await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)
    await resume(planning)

    assert told.passed == 0
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_a_paused_execution_can_be_cancelled(planning: Planning) -> None:
    await planning.start(LINE)
    await pause(planning)
    await planning.append(ExecutionCancelled(reason="", cancelled_by="ada"), key="execution/end")

    with pytest.raises(AlreadyTerminal):
        await resume(planning)
    assert planning.state.execution.status is ExecutionStatus.CANCELLED


async def test_a_pause_that_loses_a_race_pauses_what_the_winner_led_to(planning: Planning) -> None:
    """The pause is planned on the state at the head, so nothing that was decided before it is lost or held."""
    await planning.start(LINE)
    append = planning.log.append
    lost = 0

    async def racing(request):  # type: ignore[no-untyped-def]
        nonlocal lost
        if not lost and any(d.event_type == "execution.paused" for s in request.streams for d in s.drafts):
            lost += 1
            raise VersionConflict(subject="execution", expected=1, current=2)
        return await append(request)

    planning.log.append = racing  # type: ignore[method-assign]

    assert (await pause(planning)).status == "PAUSED"
    assert planning.types().count("execution.paused") == lost == 1


LOOP = """
workflow:
- step: each
  loop: {in: "{{ items }}", iterator: it, spec: {mode: parallel, max_in_flight: 3}}
  tool: {kind: noop}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
"""


async def test_a_loop_goes_on_as_wide_as_before_and_holds_back_one_end_for_all_its_items(planning: Planning) -> None:
    await planning.start(LOOP, items=list(range(7)))
    keys = planning.all_issued("each")
    commands = [outcome.command for outcome in await planning.actors.claim(WORKER, keys)]
    await pause(planning)
    for command in commands:
        assert command is not None
        await planning.complete(command)

    assert len(planning.state.execution.held) == 1
    assert decode_state(encode_state(planning.state)) == planning.state
    await planning.replace_planner()
    await resume(planning)

    running = [key for key in planning.all_issued("each") if key not in keys]
    assert (len(keys), len(running)) == (3, 3)
    await planning.run_all("each")
    await planning.run("after")
    assert planning.types().count("loop.done") == 1
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_a_loop_whose_items_all_end_while_paused_is_done_when_it_is_resumed(planning: Planning) -> None:
    await planning.start(LOOP, items=[1, 2, 3])
    commands = [outcome.command for outcome in await planning.actors.claim(WORKER, planning.all_issued("each"))]
    await pause(planning)
    for command in commands:
        assert command is not None
        await planning.complete(command)
    assert "loop.done" not in planning.types()

    await resume(planning)

    assert planning.types().count("loop.done") == 1
    assert planning.entered() == ["each", "after"]


async def test_a_loop_that_takes_too_long_while_paused_ends_once(planning: Planning) -> None:
    limited = LOOP.replace("  next", "  spec: {timeout: 5}\n  next")
    await planning.start(limited, items=[1, 2, 3])
    (first, *_) = [outcome.command for outcome in await planning.actors.claim(WORKER, planning.all_issued("each"))]
    await pause(planning)
    assert first is not None
    await planning.complete(first)
    planning.pass_time(5)
    told = await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)

    await resume(planning)

    assert told.passed == 1
    assert planning.types().count("loop.done") == 1
    assert (planning.state.execution.failure or {})["code"] == "step.timeout"


WIDE = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: each}]}}
- {step: a, tool: {kind: noop}, next: {arcs: [{step: j}]}}
- step: each
  loop: {in: [1, 2, 3, 4, 5], iterator: it, spec: {mode: parallel, max_in_flight: 2}}
  tool: {kind: noop}
  next: {arcs: [{step: j}]}
- {step: j, tool: {kind: noop}}
"""


@pytest.mark.parametrize("seed", range(12))
async def test_however_often_it_is_paused_and_its_planner_replaced_the_same_happens(
    planning: Planning, seed: int
) -> None:
    chance = random.Random(seed)
    await planning.start(WIDE)
    is_paused = False
    while not planning.state.execution.status.is_final:
        is_paused = is_paused if chance.random() < 0.6 else not is_paused
        await (pause if is_paused else resume_if_paused)(planning)
        if chance.random() < 0.2:
            await planning.replace_planner()
        runnable = [one for one in planning.state.commands.values() if one.is_open]
        if not runnable:
            is_paused = False
            await resume_if_paused(planning)
            await asyncio.sleep(0)
            continue
        key = CommandKey(execution_id=planning.execution_id, command_id=chance.choice(runnable).command_id)
        (outcome,) = await planning.actors.claim(WORKER, [key])
        if outcome.command is not None and chance.random() < 0.8:
            await planning.complete(outcome.command)

    types = planning.types()
    assert planning.state.execution.status is ExecutionStatus.COMPLETED
    assert sorted(planning.entered()) == ["a", "each", "j", "s"]
    assert (types.count("loop.item"), types.count("loop.done")) == (5, 1)
    assert types.count("command.issued") == types.count("command.completed") == 8


async def resume_if_paused(planning: Planning) -> None:
    if planning.state.execution.status is ExecutionStatus.PAUSED:
        await resume(planning)
