"""Rows of loops: one per epoch, with counts instead of items."""

from __future__ import annotations

from collections.abc import Iterator

from noetl_core.canonical import JsonObject
from noetl_core.fold import State
from noetl_core.loops.state import Loop
from noetl_core.recorded import Recorded
from noetl_core.surfaces.shapes import without_absent


def changed_loops(before: State, after: State, recorded: Recorded) -> Iterator[JsonObject]:
    """Rows that differ after an event; an epoch that is over stays as it was."""
    old_loops, new_loops = before.execution.loops, after.execution.loops
    if old_loops is new_loops:
        return
    for step, loop in new_loops.items():
        old = old_loops.get(step)
        if loop is old or (old is not None and old.loop_id == loop.loop_id and not old.is_open):
            continue
        yield _loop_row(after, step, loop, recorded)


def _loop_row(state: State, step: str, loop: Loop, recorded: Recorded) -> JsonObject:
    return without_absent(
        {
            "loop_id": loop.loop_id,
            "execution_id": str(state.execution.execution_id),
            "step": step,
            "activation": loop.activation,
            "mode": loop.mode,
            "status": loop.status or "running",
            "total": loop.total,
            "max_in_flight": loop.max_in_flight,
            "begun": loop.begun,
            "success": loop.success,
            "failed": loop.failed,
            "breaks": loop.breaks,
            "frame_count": loop.frame_count,
            "stage_id": loop.stage_id,
            "collection_ref": loop.collection.to_json() if loop.collection else None,
            "first_error": dict(loop.first_error) if loop.first_error is not None else None,
            "started_version": loop.started_version,
            "done_event_id": None if loop.is_open else str(recorded.envelope.event_id),
            "stream_version": recorded.stream_version,
        }
    )
