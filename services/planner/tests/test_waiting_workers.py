"""Workers that wait at the planner: decision and claim are one append, and no lost answer loses a command."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from noetl_core.append import Appended, AppendRequest
from noetl_core.errors import Unavailable
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_planner.application.waiting_workers import WaitingWorkers
from noetl_testkit.planning import Planning, ok
from noetl_testkit.until import until

ADA, BOB = Worker(worker_id="ada"), Worker(worker_id="bob")
ONE_STEP = """
workflow:
- {step: a, tool: {kind: noop}}
"""
TWO_STEPS = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}, {step: c}], spec: {mode: inclusive}}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""
TWO_ITEMS = """
workflow:
- {step: each, loop: {in: [1, 2], iterator: item, spec: {mode: parallel, max_in_flight: 2}}, tool: {kind: noop}}
"""
OK = ok()

Wait = asyncio.Task[tuple[GrantedCommand, ...]]


def waits(
    planning: Planning, worker: Worker = ADA, *, room: int = 8, held: Collection[CommandKey] = (), seconds: float = 60.0
) -> Wait:
    return asyncio.create_task(planning.actors.wait_for_commands(worker, room=room, held=held, seconds=seconds))


class Appends(list[list[str]]):
    """The types of each append."""

    def __init__(self, planning: Planning) -> None:
        planning.log.on_commit.append(lambda events: self.append([one.stored.envelope().event_type for one in events]))


async def test_what_is_decided_is_claimed_by_who_waits_in_the_same_append() -> None:
    planning = Planning()
    appends, waiting = Appends(planning), waits(planning)
    await planning.start(ONE_STEP)

    (command,) = await waiting

    assert command.step == "a"
    assert appends[1] == [
        "workflow.initialized",
        "step.enter",
        "command.issued",
        "command.claimed",
        "command.started",
    ]
    assert not planning.log.hints
    await planning.actors.complete(ADA, command.key, OK, wants_next=True)
    assert appends[-1][-1] == "playbook.completed"


async def test_commands_go_to_those_who_wait_in_turns_and_the_rest_is_hinted() -> None:
    planning = Planning()
    first = waits(planning, room=1)
    await planning.start(TWO_STEPS)
    (command,) = await first
    ada, bob = waits(planning, ADA, room=1, held=[command.key]), waits(planning, BOB, room=2)
    await asyncio.sleep(0)

    await planning.actors.complete(Worker(worker_id="ada"), command.key, OK, wants_next=False)

    steps = [[one.step for one in await wait] for wait in (ada, bob)]
    assert sorted(steps) == [["b"], ["c"]]
    assert not planning.log.hints


async def test_other_pools_and_full_workers_get_nothing_and_a_hint_is_left() -> None:
    planning = Planning()
    other = waits(planning, Worker(worker_id="ada", pool="gpu"), seconds=0.05)
    await planning.start(ONE_STEP)

    assert await other == ()
    assert [hint.subject for hint in planning.log.hints] == ["work.default"]


async def test_an_answer_that_got_lost_is_given_again_to_who_comes_without_it() -> None:
    planning = Planning()
    waiting = waits(planning)
    await planning.start(ONE_STEP)
    (lost,) = await waiting

    (again,) = await waits(planning, held=())
    assert again.key == lost.key
    assert await waits(planning, held=[lost.key], seconds=0.0) == ()
    await planning.actors.complete(ADA, lost.key, OK, wants_next=False)
    assert await waits(planning, held=(), seconds=0.0) == ()
    assert planning.types().count("command.claimed") == 1


async def test_the_next_planner_tells_a_worker_of_a_claim_whose_answer_died_with_the_last() -> None:
    planning = Planning()
    waiting = waits(planning)
    await planning.start(ONE_STEP)
    (lost,) = await waiting
    await planning.replace_planner()

    (again,) = await waits(planning) or await waits(planning)  # once sent away, to ask with what it holds by then

    assert again.key == lost.key


async def test_the_next_planner_tells_of_a_claim_although_it_heard_the_whole_log_from_the_bus() -> None:
    planning = Planning()
    waiting = waits(planning)
    await planning.start(ONE_STEP)
    (lost,) = await waiting
    await planning.actors.stop()
    planning.actors = planning.planner()
    planning.actors.take(planning.execution_id, *planning.log.streams[planning.execution_id].events)

    (again,) = await waits(planning, seconds=5.0) or await waits(planning, seconds=5.0)

    assert again.key == lost.key


async def test_the_next_planner_tells_of_a_claim_that_stands_behind_a_cause_which_led_to_nothing() -> None:
    planning = Planning()
    await planning.start(TWO_ITEMS)
    first, second = planning.all_issued("each")
    (begun,) = await planning.actors.claim(ADA, [first])
    assert begun.command is not None
    await planning.actors.complete(ADA, first, OK, wants_next=False)
    (lost,) = await planning.actors.claim(BOB, [second])
    assert lost.command is not None
    await planning.replace_planner()

    (again,) = await waits(planning, BOB, seconds=5.0) or await waits(planning, BOB, seconds=5.0)

    assert again.key == second


async def test_an_append_whose_answer_got_lost_claims_once_and_its_worker_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning, outages = Planning(), [Unavailable("the answer got lost")]
    append = planning.log.append

    async def append_unheard(request: AppendRequest) -> tuple[Appended, ...]:
        appended = await append(request)
        if outages and len(request.streams[0].drafts) > 1:
            raise outages.pop()
        return appended

    monkeypatch.setattr(planning.log, "append", append_unheard)
    waiting = waits(planning)
    await planning.start(ONE_STEP)

    told = await waiting or await waits(planning)

    assert [command.step for command in told] == ["a"]
    assert planning.types().count("command.claimed") == 1


async def test_who_waits_again_or_no_longer_ends_its_earlier_wait() -> None:
    planning = Planning()
    first = waits(planning)
    await asyncio.sleep(0)
    second = waits(planning)

    assert await first == ()
    assert await waits(planning, room=0) == ()
    assert await second == ()
    await planning.start(ONE_STEP)
    assert len(planning.log.hints) == 1


async def test_an_execution_that_has_ended_hands_nothing_over() -> None:
    planning = Planning()
    await planning.start(ONE_STEP)
    await planning.append(ExecutionCancelled(cancelled_by="me", reason="enough"), key="execution/end")
    await until(lambda: planning.actors.known_version(planning.execution_id) == len(planning.events()))

    assert await waits(planning, seconds=0.01) == ()


async def test_waits_end_with_their_time_with_the_planner_and_well_before_a_lease_does() -> None:
    waiting = WaitingWorkers(lease_seconds=0.08)

    async def wait(seconds: float) -> tuple[GrantedCommand, ...]:
        return await waiting.wait(ADA, room=1, held=(), seconds=seconds, again=lambda worker, key: None)

    assert await wait(60.0) == ()
    long = WaitingWorkers(lease_seconds=600.0)
    last = asyncio.create_task(long.wait(ADA, room=1, held=(), seconds=60.0, again=lambda worker, key: None))
    await asyncio.sleep(0)
    long.close()
    assert await last == ()


async def test_a_wait_that_is_over_still_hears_of_an_append_under_way() -> None:
    waiting = WaitingWorkers(lease_seconds=600.0)
    wait = asyncio.create_task(waiting.wait(ADA, room=2, held=(), seconds=0.01, again=lambda worker, key: None))
    await asyncio.sleep(0)
    picked, other = waiting.pick("default"), waiting.pick("default")
    assert picked is not None and picked is other
    await until(lambda: picked.is_over)
    assert waiting.pick("default") is None

    waiting.put_back(picked)
    assert not wait.done()
    waiting.put_back(picked)

    assert await wait == ()
