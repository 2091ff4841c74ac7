"""Single bad moments, placed exactly: what a history has to survive that seeds meet only by chance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from noetl_core.events import is_terminal
from noetl_testkit.simulation.faults import Fault, Kind
from noetl_testkit.simulation.invariants import Stream
from noetl_testkit.simulation.nodes import HEAD_POLL_SECONDS
from noetl_testkit.simulation.playbooks import HAND_WRITTEN
from noetl_testkit.simulation.verdict import judge, problems_of, quiet
from noetl_testkit.simulation.world import STEPS, Script, World

CASES = {case.name: case for case in HAND_WRITTEN}


def script(case: str, *faults: Fault, minds: tuple[str, ...] = ("",), planners: int = 2) -> Script:
    return Script(seed=4, case=CASES[case], minds=minds, replicas=(1, planners, 1, 1), faults=faults)


def lived(what: Script) -> World:
    with quiet():
        world = World(what).run()
        assert list(problems_of(world)) == []
        world.close()
    return world


@pytest.mark.parametrize("case", ["parallel", "family", "frames", "join"])
def test_a_planner_that_forgets_everything_again_and_again_decides_the_same(case: str) -> None:
    wiped = tuple(Fault(Kind.WIPE, place, target=f"planner-{place % 2}") for place in range(150, 900, 25))

    assert judge(script(case, *wiped)).problems == []


@pytest.mark.parametrize("process", ["api-0", "planner-0", "planner-1", "projector-0", "worker-0", "reaper-0"])
def test_a_process_may_be_killed_at_any_step(process: str) -> None:
    for step in range(100, 700, 75):
        verdict = judge(script("join", Fault(Kind.KILL, step, 1.0, process)))
        assert verdict.problems == [], f"killed before step {step}"


@pytest.mark.parametrize("case", ["chain", "again"])
def test_a_takeover_in_the_middle_of_undecided_events_decides_each_once(case: str) -> None:
    """The answer to a decision is lost and its owner deposed: the next one finds causes without and with decisions."""
    for call in range(40, 110, 5):
        step = 4 * call
        verdict = judge(
            script(
                case,
                Fault(Kind.ANSWER_LOST, call, 0.5),
                Fault(Kind.DEPOSE, step, target="planner-0"),
                Fault(Kind.DEPOSE, step, target="planner-1"),
            )
        )
        assert verdict.problems == [], f"at call {call}"


def test_a_reaper_that_was_deposed_has_nothing_done_and_the_next_one_has_it_done_once() -> None:
    """At one moment after the other, until a deadline is told under a fence that is over."""
    for step in range(0, STEPS, 20):
        world = lived(script("late", Fault(Kind.DEPOSE, step, target="reaper-0"), planners=1))
        (stream,) = world.log.streams.values()
        passed = [event.envelope() for event in stream.events if event.envelope().event_type == "deadline.passed"]
        assert len({one.idempotency_key for one in passed}) == len(passed) > 0
        if any("refused: reaper epoch" in line for line in world.trace):
            return
    raise AssertionError("no reaper was ever refused")


@pytest.mark.parametrize("case", ["chain", "errors"])
def test_the_last_message_of_an_execution_is_not_missed_for_long(case: str) -> None:
    undisturbed = lived(script(case))
    messages = undisturbed.place.bus.messages
    lost = tuple(Fault(Kind.MESSAGE_LOST, place) for place in range(messages - 6, messages))
    world = lived(script(case, *lost))

    (stream,) = world.log.streams.values()
    ended = next(event for event in stream.events if is_terminal(event.envelope().event_type))
    repaired = world.place.projections.executions[stream.head.execution_id].view
    assert repaired.stream_version == stream.head.version
    late = (world.place.now() - ended.ingest_time).total_seconds()
    assert late < 3 * HEAD_POLL_SECONDS
    assert any("message lost" in line for line in world.trace)


def test_a_cancel_that_races_with_the_end_leaves_one_end() -> None:
    """Cancelled at every few milliseconds around the end: it is one or the other, never both and never none."""
    undisturbed = lived(script("chain"))
    (stream,) = undisturbed.log.streams.values()
    took = (stream.events[-1].ingest_time - stream.events[0].ingest_time).total_seconds()
    ends: list[str] = []
    for step in range(-9, 9):
        world = lived(script("chain", minds=(f"cancel@{took + step * 0.004:.4f}",)))
        ends += [Stream(key, stream.events).status.value for key, stream in world.log.streams.items()]

    assert set(ends) == {"CANCELLED", "COMPLETED"}


def test_a_worker_that_stands_still_past_its_lease_is_refused_and_another_one_finishes() -> None:
    two = replace(script("chain"), replicas=(1, 1, 1, 2))
    for step in range(200, 420, 40):
        for worker in ("worker-0", "worker-1"):
            world = lived(replace(two, faults=(Fault(Kind.STOP, step, 14.0, worker),)))
            (stream,) = world.log.streams.values()
            kinds = [event.envelope().event_type for event in stream.events]
            assert kinds.count("playbook.completed") == 1
