"""Who gets which work by where its data are, and what the log tells of that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from noetl_core.locator import Distance, worker_locator
from noetl_core.placement import TOO_FAR, Locality
from noetl_core.ports.commands import Worker
from noetl_core.ports.frames import FrameClaim, StageSlot
from noetl_testkit.planning import Planning, ok

LINE = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
"""
FORK = """
workflow:
- {step: a, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}, {step: d}]}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
- {step: d, tool: {kind: noop}}
"""
FRAMES = """
workflow:
- {step: load, tool: {kind: noop}, next: {arcs: [{step: each}]}}
- step: each
  loop: {in: "{{ range(8) | list }}", spec: {mode: parallel, max_in_flight: 4, engine: inline, frame: {max_rows: 2}}}
  tool: {kind: noop}
"""
TRIED_AGAIN = {
    "status": "error",
    "reference": None,
    "parent_ref": None,
    "context": {"error": {"kind": "unknown", "code": "X", "message": "no", "retryable": True}},
}


def worker(node: str, *, zone: str = "z1", max_distance: Distance = Distance.ANY) -> Worker:
    place = worker_locator(tenant="*", org="*", region="eu", zone=zone, node=node, worker=node)
    return Worker(worker_id=node, locator=str(place), locality=Locality(max_distance=max_distance))


def told(planning: Planning, event_type: str) -> Mapping[str, Any]:
    return [one.envelope.meta for one in planning.events() if one.envelope.event_type == event_type][-1]


async def claim(planning: Planning, slot: int, by: Worker) -> FrameClaim:
    stage = planning.state.execution.stages["each"]
    wanted = StageSlot(execution_id=planning.execution_id, stage_id=stage.stage_id, slot=slot)
    (outcome,) = await planning.actors.claim_frames(by, [wanted])
    return outcome


async def run_a(planning: Planning, first_step: str, by: Worker) -> None:
    (outcome,) = await planning.actors.claim(by, [planning.issued(first_step)])
    assert outcome.command is not None
    await planning.actors.complete(by, outcome.command.key, ok(), wants_next=False)


async def test_claims_of_commands_tell_how_far_the_result_is_that_led_to_them() -> None:
    planning = await Planning().start(LINE)
    await run_a(planning, "a", worker("n1"))

    (far,) = await planning.actors.claim(worker("n2", max_distance=Distance.NODE), [planning.issued("b")])
    (near,) = await planning.actors.claim(worker("n2", max_distance=Distance.ZONE), [planning.issued("b")])

    assert (far.refusal, far.command) == (TOO_FAR, None)
    assert near.command is not None
    claimed = told(planning, "command.claimed")
    assert claimed["placement"] == {"distance": "zone", "max_distance": "zone", "within_max_distance": True}
    assert (claimed["source_locality"], claimed["worker_locator"]) == (worker("n1").locator, worker("n2").locator)


async def test_a_frame_that_was_lost_goes_to_whoever_is_nearest_to_its_rows() -> None:
    planning = await Planning().start(FRAMES)
    await run_a(planning, "load", worker("n1"))
    held = [await claim(planning, slot, worker(node, zone=zone)) for slot, (node, zone) in enumerate(PLACES)]
    for (node, zone), one in zip(PLACES, held, strict=True):
        assert one.frame is not None
        assert told(planning, "frame.dispatched")["source_locality"] == worker("n1").locator
        by = worker(node, zone=zone)
        await planning.actors.fail_frame(by, one.frame.key, TRIED_AGAIN, retryable=True, wants_next=False)
    await planning.replace_planner()

    again = await claim(planning, 0, worker("n8", zone="z2"))
    nearest = await claim(planning, 1, worker("n3", zone="z3"))

    assert again.frame is not None and nearest.frame is not None
    assert again.frame.key.frame_id == _id(held[1]), "the one that was in its zone"
    assert nearest.frame.key.frame_id == _id(held[2]), "the one that was on its node"
    dispatched = told(planning, "frame.dispatched")
    assert dispatched["placement"]["distance"] == "node"


async def test_rows_that_are_too_far_are_left_to_others() -> None:
    planning = await Planning().start(FRAMES)
    await run_a(planning, "load", worker("n1"))

    refused = await claim(planning, 0, worker("n2", zone="z2", max_distance=Distance.ZONE))
    taken = await claim(planning, 0, worker("n2", zone="z1", max_distance=Distance.ZONE))

    assert (refused.refusal, refused.frame) == (TOO_FAR, None)
    assert taken.frame is not None


PLACES = (("n1", "z1"), ("n2", "z2"), ("n3", "z3"))


def _id(outcome: FrameClaim) -> str:
    assert outcome.frame is not None
    return outcome.frame.key.frame_id


async def test_a_command_is_not_handed_to_who_waits_too_far_away() -> None:
    planning = await Planning().start(LINE)
    far, near = worker("n2", max_distance=Distance.NODE), worker("n3", max_distance=Distance.ZONE)
    waits = [
        asyncio.create_task(planning.actors.wait_for_commands(one, room=1, held=(), seconds=60.0))
        for one in (far, near)
    ]

    await run_a(planning, "a", worker("n1"))

    (command,) = await waits[1]
    assert command.step == "b"
    assert await planning.actors.wait_for_commands(far, room=0, held=(), seconds=0.0) == ()
    assert await waits[0] == ()


async def test_a_command_is_handed_to_the_nearest_of_those_who_wait_and_many_at_once_go_round() -> None:
    planning = await Planning().start(FORK)
    waiting = [worker("n9", zone="z9"), worker("n2"), worker("n1")]
    waits = [
        asyncio.create_task(planning.actors.wait_for_commands(one, room=3, held=(), seconds=60.0)) for one in waiting
    ]

    await run_a(planning, "a", worker("n1"))

    steps = [[command.step for command in await wait] for wait in waits]
    assert steps == [["c"], ["d"], ["b"]], "the first to the node of what led to it, the others to whose turn it is"
    claims: list[Mapping[str, Any]] = [
        one.envelope.meta for one in planning.events() if one.envelope.event_type == "command.claimed"
    ]
    distances = [claim["placement"]["distance"] for claim in claims if "placement" in claim]
    assert distances == ["node", "region", "zone"]


async def test_where_nobody_knows_where_data_are_whose_turn_it_is_decides() -> None:
    planning = await Planning().start(LINE)
    waiting = [Worker(worker_id="ada"), worker("n1")]
    waits = [
        asyncio.create_task(planning.actors.wait_for_commands(one, room=1, held=(), seconds=60.0)) for one in waiting
    ]
    await run_a(planning, "a", Worker(worker_id="carl"))

    assert [command.step for command in await waits[0]] == ["b"]
    assert await planning.actors.wait_for_commands(waiting[1], room=0, held=(), seconds=0.0) == ()
    assert await waits[1] == ()
