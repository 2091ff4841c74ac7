"""Loops on planners that know nothing of them: which items there are, and what is done, comes from the log alone."""

from __future__ import annotations

from typing import Any

from noetl_core.loops.events import LoopDone, LoopStarted
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import GrantedCommand, Variables
from noetl_testkit.planning import WORKER, Planning, ok
from noetl_testkit.until import until

LOOP = """
workflow:
- step: each
  loop: {in: "{{ names }}", iterator: name}
  tool: {kind: noop}
  set: {ctx.visits: "{{ visits + 1 }}"}
  next: {arcs: [{step: each, when: "{{ visits < 2 }}"}]}
"""
STORED = """
workflow:
- {step: load, tool: {kind: noop}, next: {arcs: [{step: each}]}}
- step: each
  loop: {in: "{{ load.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 3}}
  tool: {kind: noop}
"""
DIGEST = "a" * 64
ROWS = PayloadRef(
    uri=f"noetl://tenant/t/org/o/payloads/sha256/{DIGEST}",
    sha256=DIGEST,
    media_type="application/json",
    bytes=9_000_000,
)


async def item(planning: Planning, number: int) -> GrantedCommand:
    """Claim an item that has been given out, from whichever planner there is."""
    await until(lambda: len(planning.all_issued("each")) > number)
    (outcome,) = await planning.actors.claim(WORKER, [planning.all_issued("each")[number]])
    assert outcome.command is not None, outcome.refusal
    return outcome.command


async def complete(planning: Planning, command: GrantedCommand, **variables: Any) -> None:
    told = Variables(values=variables) if variables else None
    await planning.actors.complete(WORKER, command.key, ok(), wants_next=False, variables=told)


def of_type(planning: Planning, kind: type) -> list[Any]:
    return [one.content for one in planning.events() if isinstance(one.content, kind)]


async def test_a_planner_that_takes_over_goes_on_with_the_frozen_collection_and_does_not_render_it_again() -> None:
    planning = await Planning().start(LOOP, names=["ada", "bob", "carl"], visits=0)
    await complete(planning, await item(planning, 0), names=["eve"])
    await planning.replace_planner()

    seen = []
    for number in (1, 2):
        command = await item(planning, number)
        assert command.item is not None
        seen.append((command.item.index, command.item.value, command.item.total))
        assert command.variables.values["names"] == ["eve"], "what `in` would give now"
        await complete(planning, command)

    assert seen == [(1, "bob", 3), (2, "carl", 3)]


async def test_each_visit_is_an_epoch_of_its_own_numbered_by_the_log_and_done_once_whoever_plans_it() -> None:
    planning = await Planning().start(LOOP, names=["ada", "bob", "carl"], visits=0)
    for number in range(6):
        await complete(planning, await item(planning, number))
        await planning.replace_planner()
    await until(lambda: planning.state.execution.status.is_final)

    epochs = [f"loop_{planning.execution_id}_each_{attempt}" for attempt in (1, 2)]
    assert [started.loop_id for started in of_type(planning, LoopStarted)] == epochs
    done = [(one.loop_id, one.status, one.success, one.collection_size) for one in of_type(planning, LoopDone)]
    assert done == [(epoch, "ok", 3, 3) for epoch in epochs]


async def test_a_stored_collection_is_counted_by_its_indices_and_no_planner_reads_it() -> None:
    planning = await Planning().start(STORED)
    unread = ok()
    unread["context"]["unselected"] = ["/rows"]
    await planning.complete(await planning.claim("load"), unread)
    answers = {
        "loop/in": {"ref": ROWS.to_json(), "type": "list", "count": 7},
        "loop/max_in_flight": {"is": 3},
    }
    await planning.complete(await planning.claim("each:evaluate_loop"), {**ok(), "context": {"evaluation": answers}})
    assert not await planning.payloads.exists(ROWS), "there is nothing to read"

    for number in range(7):
        command = await item(planning, number)
        assert command.item is not None
        assert (command.item.index, command.item.total, command.item.collection) == (number, 7, ROWS)
        await complete(planning, command)
        await planning.replace_planner()
    await until(lambda: planning.state.execution.status.is_final)

    (done,) = of_type(planning, LoopDone)
    assert (done.status, done.success, done.collection_size) == ("ok", 7, 7)


async def test_of_a_loop_that_is_done_only_its_counts_are_left_in_the_state() -> None:
    planning = await Planning().start(LOOP, names=["ada", "bob", "carl"], visits=0)
    for number in range(6):
        await complete(planning, await item(planning, number), **{f"seen_{number % 3}": number})
    await until(lambda: planning.state.execution.status.is_final)

    (loop,) = planning.state.execution.loops.values()
    assert (loop.loop_id, loop.success, loop.total) == (f"loop_{planning.execution_id}_each_2", 3, 3)
    assert (loop.items, loop.collection, loop.finished, dict(loop.before)) == ((), None, (), {})
