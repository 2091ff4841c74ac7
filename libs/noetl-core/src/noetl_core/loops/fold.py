"""How facts change a loop. Total and pure: it never refuses a fact, and counts no item twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, assert_never

from noetl_core.loops.events import LoopDone, LoopEvent, LoopItemStarted, LoopStarted
from noetl_core.loops.intervals import holds, with_index
from noetl_core.loops.state import Loop
from noetl_core.values import replace

Loops = Mapping[str, Loop]
"""The loop of the last activation of each step that has one, by step."""


def evolve(loops: Loops, event: LoopEvent, *, stream_version: int = 0) -> Loops:
    """The loops after a fact about one of them; a new epoch takes the place of the one before."""
    match event:
        case LoopStarted():
            return {**loops, event.step: _started(event, stream_version)}
        case LoopItemStarted():
            loop = loops.get(event.step)
            if loop is None or loop.loop_id != event.loop_id:
                return loops
            return {**loops, event.step: replace(loop, begun=max(loop.begun, event.iter_index + 1))}
        case LoopDone():
            return {**loops, event.step: _done(loops.get(event.step), event)}
        case _:
            assert_never(event)


def take_outcome(loops: Loops, *, step: str, loop_id: str, index: int, result: Mapping[str, Any] | None) -> Loops:
    """An item has ended; outcomes of other epochs, and second outcomes of one item, change nothing."""
    loop = loops.get(step)
    if loop is None or loop.loop_id != loop_id or not loop.is_open or holds(loop.finished, index):
        return loops
    loop = replace(loop, finished=with_index(loop.finished, index))
    if (result or {}).get("status") != "error":
        return {**loops, step: replace(loop, success=loop.success + 1)}
    error = ((result or {}).get("context") or {}).get("error") or {}
    first = loop.first_error or {"index": index, "code": error.get("code"), "message": error.get("message")}
    return {**loops, step: replace(loop, failed=loop.failed + 1, first_error=first)}


def note_before(
    loops: Loops,
    *,
    step: str,
    loop_id: str,
    names: Collection[str],
    variables: Mapping[str, Any],
    refs: Mapping[str, Any],
) -> Loops:
    """An item that runs beside others is about to change variables: remember what the others are to see of them."""
    loop = loops.get(step)
    if loop is None or loop.loop_id != loop_id or loop.mode == "sequential":
        return loops
    new = {name: _as_it_is(name, variables, refs) for name in names if name not in loop.before}
    return {**loops, step: replace(loop, before={**loop.before, **new})} if new else loops


def _as_it_is(name: str, variables: Mapping[str, Any], refs: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in refs:
        return {"ref": refs[name]}
    return {"value": variables[name]} if name in variables else {}


def _started(event: LoopStarted, stream_version: int) -> Loop:
    return Loop(
        loop_id=event.loop_id,
        activation=event.activation,
        mode=event.mode,
        total=event.collection_size,
        max_in_flight=event.max_in_flight,
        started_version=stream_version,
        items=event.items or (),
        collection=event.payload_ref,
    )


def _done(loop: Loop | None, event: LoopDone) -> Loop:
    """What is left of a loop that is over: its counts. One that could not even start has none."""
    known = loop if loop is not None and loop.loop_id == event.loop_id else None
    if known is not None and not known.is_open:
        return known
    return Loop(
        loop_id=event.loop_id,
        activation=event.activation,
        mode=known.mode if known else "",
        total=event.collection_size,
        max_in_flight=known.max_in_flight if known else 1,
        started_version=known.started_version if known else 0,
        begun=known.begun if known else 0,
        success=event.success,
        failed=event.failed,
        first_error=known.first_error if known else None,
        breaks=known.breaks if known else 0,
        frame_count=known.frame_count if known else 0,
        stage_id=known.stage_id if known else "",
        status=event.status,
    )
