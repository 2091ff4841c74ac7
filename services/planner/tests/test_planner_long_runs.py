"""Executions that go on for long: what a step costs, and what the planner keeps, do not grow with what is behind.

Work is counted, not timed: events that are appended, folded, read and kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from noetl_core.append import PlacedEvent
from noetl_core.fold import State
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.frames import CommittedRows, GrantedFrame, StageSlot
from noetl_core.stages.policy import FrameBounds
from noetl_core.state_json import encode_state
from noetl_planner.application.actor import Actor
from noetl_testkit.planning import WORKER, Planning, ok

POLL = """
workload: {n: 0}
workflow:
- step: poll
  tool: {kind: noop}
  set: {ctx.n: "{{ n + 1 }}"}
  next: {arcs: [{step: poll, when: "{{ n < VISITS }}"}]}
"""
WIDE = """
workflow:
- {step: rows, tool: {kind: noop}, next: {arcs: [{step: l}]}}
- step: l
  loop: {in: "{{ rows.data }}", spec: {mode: parallel, max_in_flight: 8}}
  tool: {kind: playbook, path: child, return_step: done}
"""
FRAMES = WIDE.replace("{kind: playbook, path: child, return_step: done}", "{kind: noop}")

STORED: dict[str, Any] = {
    "status": "ok",
    "reference": {"type": "object_store", "ref_id": "r", "uri": "noetl://r"},
    "parent_ref": None,
    "context": {},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A line for each of so many turns takes longer than the turns."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.reset_defaults()


class Appends:
    """What every append held, once somebody looks."""

    def __init__(self, planning: Planning) -> None:
        self.kinds: list[list[str]] = []
        self.bytes: list[int] = []
        planning.log.on_commit.append(self._take)

    def _take(self, events: Any) -> None:
        placed: list[PlacedEvent] = list(events)
        self.bytes.append(sum(len(one.stored.body) for one in placed))
        self.kinds.append([one.prepared.draft.event_type for one in placed])


def actor_of(planning: Planning) -> Actor:
    return planning.actors._actors[planning.execution_id]


def kept(state: State) -> int:
    return len(encode_state(state))


async def go_on(planning: Planning, command: GrantedCommand, times: int) -> GrantedCommand:
    """A worker that is handed one command after the other."""
    for _ in range(times):
        completion = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)
        assert completion.next is not None
        command = completion.next
    return command


async def open_loop(planning: Planning, *, items: int, width: int) -> PayloadRef:
    """Be the worker that evaluates the collection."""
    rows: dict[str, Any] = ok()
    rows["context"]["unselected"] = ["/data"]
    await planning.run("rows", rows)
    ref = await planning.payloads.put(tenant_id="t", organization_id="o", data=b"[]", media_type="application/json")
    collection = {"ref": ref.to_json(), "type": "list", "count": items}
    answers: dict[str, Any] = ok()
    answers["context"] = {"evaluation": {"loop/in": collection, "loop/max_in_flight": {"is": width}}}
    await planning.run("l:evaluate_loop", answers)
    return ref


async def test_ten_thousand_visits_of_a_step_cost_the_same_each_and_leave_nothing_behind() -> None:
    planning = await Planning().start(POLL.replace("VISITS", "10000"), n=0)
    appends = Appends(planning)
    command = await go_on(planning, await planning.claim("poll"), 100)
    early, early_bytes = kept(actor_of(planning).state), appends.bytes[-1]

    command = await go_on(planning, command, 9_899)
    late = kept(actor_of(planning).state)
    assert command.activation == 10_000
    assert len(actor_of(planning).state.commands) <= 2
    assert late < early + 64, "only numbers have grown longer"
    assert appends.bytes[-1] < early_bytes + 64
    assert Counter(map(tuple, appends.kinds[10:])).most_common(1)[0][1] == len(appends.kinds) - 10, "all alike"
    assert len(appends.kinds[-1]) == 8, "result, variables, exit, entry and the next claim are one append"

    completion = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)
    assert completion.next is None
    assert appends.kinds[-1][-1] == "playbook.completed"
    await planning.actors.stop()


async def test_items_of_a_long_loop_cost_six_events_and_one_append_each_and_leave_nothing_behind() -> None:
    planning = await Planning().start(WIDE)
    ref = await open_loop(planning, items=10_000, width=8)
    appends = Appends(planning)

    command = await go_on(planning, await planning.claim("l"), 50)
    early = kept(actor_of(planning).state)
    command = await go_on(planning, command, 1_000)

    assert command.item is not None
    assert command.item.index == 1_057
    assert command.item.collection == ref
    assert set(map(tuple, appends.kinds[1:])) == {
        ("call.done", "command.completed", "loop.item", "command.issued", "command.claimed", "command.started")
    }, "an item costs six events, in one append, and its worker is handed the next one"
    assert max(appends.bytes) < 6 * 1024
    assert kept(actor_of(planning).state) < early + 256
    assert len(actor_of(planning).state.commands) <= 12

    await planning.replace_planner()
    again = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)
    assert again.next is not None
    assert again.next.item is not None
    assert again.next.item.index == 1_058, "another planner goes on from the log"
    await planning.actors.stop()


async def commit(planning: Planning, frame: GrantedFrame) -> GrantedFrame | None:
    done = CommittedRows(result=STORED, stop=frame.rows.stop, success=frame.rows.stop - frame.rows.start, failed=0)
    return (await planning.actors.commit_frame(WORKER, frame.key, done, wants_next=True)).next


async def first_frame(planning: Planning) -> GrantedFrame:
    stage = actor_of(planning).state.execution.stages["l"]
    slot = StageSlot(execution_id=planning.execution_id, stage_id=stage.stage_id, slot=0)
    (claim,) = await planning.actors.claim_frames(WORKER, [slot])
    assert claim.frame is not None
    return claim.frame


@pytest.mark.parametrize(("items", "opened"), [(0, "loop.started"), (1_000, "loop.started"), (1_001, "stage.opened")])
async def test_loops_over_more_than_a_thousand_items_run_in_frames(items: int, opened: str) -> None:
    planning = await Planning().start(FRAMES)
    await open_loop(planning, items=items, width=8)
    assert [one for one in planning.types() if one in {"loop.started", "stage.opened"}] == [opened]
    if opened == "stage.opened":
        frame = await first_frame(planning)
        assert (frame.rows.start, frame.rows.stop, frame.rows.bounds) == (0, 1, FrameBounds())
    await planning.actors.stop()


async def test_a_hundred_thousand_rows_in_frames_cost_three_events_a_frame_and_leave_nothing_behind() -> None:
    framed = FRAMES.replace("max_in_flight: 8", "max_in_flight: 8, engine: inline, frame: {max_rows: 50}")
    planning = await Planning().start(framed)
    ref = await open_loop(planning, items=100_000, width=8)
    appends = Appends(planning)

    following: GrantedFrame | None = await first_frame(planning)
    sizes: list[int] = []
    frames = 0
    while following is not None:
        assert (following.rows.collection, following.rows.values) == (ref, None), "the planner has no rows"
        if frames % 200 == 100:
            sizes.append(kept(actor_of(planning).state))
        following = await commit(planning, following)
        frames += 1

    assert (frames, len(sizes)) == (2_000, 10)
    assert max(sizes) < min(sizes) + 256, "only numbers grow longer"
    assert set(map(tuple, appends.kinds[1:-1])) == {("frame.committed", "frame.dispatched", "frame.started")}
    assert appends.kinds[-1][:3] == ["frame.committed", "stage.closed", "loop.done"]
    await planning.actors.stop()


async def test_a_very_wide_loop_is_given_out_in_appends_of_bounded_size() -> None:
    planning = await Planning().start(WIDE.replace("max_in_flight: 8", "max_in_flight: 5000"))
    await open_loop(planning, items=10_000, width=5_000)
    appends = Appends(planning)
    issued = [
        CommandKey(execution_id=planning.execution_id, command_id=one.envelope.command_id)
        for one in planning.events()
        if one.envelope.event_type == "command.issued" and one.envelope.node_name == "l"
    ]
    assert len(issued) == 200, "one decision gives out so many"
    claims = await planning.actors.claim(WORKER, issued[:40])
    commands = [outcome.command for outcome in claims if outcome.command is not None]

    ends = await asyncio.gather(
        *(planning.actors.complete(WORKER, command.key, ok(), wants_next=True) for command in commands)
    )

    assert all(end.next is not None for end in ends), "nobody waits for what others are given"
    loop = actor_of(planning).state.execution.loops["l"]
    assert (loop.ended, loop.running) == (40, 5_000)
    assert len(appends.kinds) > 3
    assert max(map(len, appends.kinds)) < 4_000
    await planning.actors.stop()
