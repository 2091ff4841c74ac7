"""Rows of stages and of their frames. Frames that nobody has had are arithmetic, and no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from noetl_core.canonical import JsonObject
from noetl_core.fold import State
from noetl_core.ids import frame_id
from noetl_core.recorded import Recorded
from noetl_core.stages.events import (
    FrameAbandoned,
    FrameCommitted,
    FrameDispatched,
    FrameEvent,
    FrameFailed,
    StageEvent,
)
from noetl_core.stages.state import Frame, FrameOutcome, Stage
from noetl_core.surfaces.shapes import without_absent
from noetl_core.timestamps import format_time


class FrameStatus(StrEnum):
    """Where a frame stands. The last five are final."""

    WAITING = "waiting"
    """To be dispatched, again or as a part of another."""
    DISPATCHED = "dispatched"
    STARTED = "started"
    COMMITTED = "committed"
    FAILED = "failed"
    ABANDONED = "abandoned"
    SPLIT = "split"
    """Failed as a whole; its halves are frames of their own."""
    STOPPED = "stopped"
    """Its stage was closed without it."""


def changed_stage(before: State, after: State, recorded: Recorded) -> JsonObject | None:
    """The row of the stage that an event is about, if it differs."""
    if not isinstance(content := recorded.content, StageEvent):
        return None
    old, new = before.execution.stages.get(content.step), after.execution.stages.get(content.step)
    if new is None or new is old or (old is not None and _counts(old) == _counts(new)):
        return None
    return _stage_row(after, new, recorded)


def changed_frames(before: State, after: State, recorded: Recorded) -> Iterator[JsonObject]:
    """Rows of frames that differ after an event."""
    if not isinstance(content := recorded.content, StageEvent):
        return
    old, new = before.execution.stages.get(content.step), after.execution.stages.get(content.step)
    if new is None or new is old or old is None or old.stage_id != new.stage_id:
        return
    if not new.is_open:
        for frame in old.frames.values():
            yield _open_frame(after, new, frame, recorded, status=FrameStatus.STOPPED)
        return
    if isinstance(content, FrameEvent):
        yield from _changed_by(content, after, old, new, recorded)


def _changed_by(event: FrameEvent, after: State, old: Stage, new: Stage, recorded: Recorded) -> Iterator[JsonObject]:
    frame = new.frames.get(event.frame_id)
    if frame is not None:
        if frame is not old.frames.get(event.frame_id):
            yield _open_frame(after, new, frame, recorded, status=_open_status(frame))
    elif (ended := old.frames.get(event.frame_id)) is not None and isinstance(
        event, FrameCommitted | FrameFailed | FrameAbandoned
    ):
        yield _ended_frame(after, new, ended, event, recorded)
    if isinstance(event, FrameDispatched):
        return
    for index in range(old.dispatched, new.dispatched):  # parts that it has left to others
        part = new.frames.get(frame_id(stage_id=new.stage_id, index=index))
        if part is not None:
            yield _open_frame(after, new, part, recorded, status=FrameStatus.WAITING)


def _counts(stage: Stage) -> tuple[str, str, int, int]:
    return stage.stage_id, stage.status, stage.dispatched, stage.total


def _stage_row(state: State, stage: Stage, recorded: Recorded) -> JsonObject:
    execution = state.execution
    return without_absent(
        {
            "stage_id": stage.stage_id,
            "execution_id": str(execution.execution_id),
            "step": stage.step,
            "activation": stage.activation,
            "loop_id": stage.loop_id,
            "parent_stage_id": stage.parent_stage_id,
            "kind": stage.kind,
            "engine": stage.engine,
            "pool": stage.pool,
            "status": stage.status or "open",
            "total": stage.total,
            "max_in_flight": stage.max_in_flight,
            "frame_count": stage.dispatched,
            "frame_policy": stage.bounds.to_json(),
            "dsl_ref": f"{execution.path}@{execution.version}#{stage.step}" if execution.path else None,
            "parent_event_id": _id(stage.parent_event_id),
            "opened_event_id": _id(stage.opened_event_id),
            "closed_event_id": None if stage.is_open else str(recorded.envelope.event_id),
            "started_at": format_time(stage.opened_at) if stage.opened_at else None,
            "ended_at": None if stage.is_open else format_time(recorded.ingest_time),
            "stream_version": recorded.stream_version,
        }
    )


def _open_status(frame: Frame) -> FrameStatus:
    if not frame.is_held:
        return FrameStatus.WAITING
    return FrameStatus.STARTED if frame.started_at is not None else FrameStatus.DISPATCHED


def _open_frame(state: State, stage: Stage, frame: Frame, recorded: Recorded, *, status: FrameStatus) -> JsonObject:
    stopped = status is FrameStatus.STOPPED
    lease_until = None if stopped else frame.lease_until
    return without_absent(
        {
            **_identity(state, stage, frame),
            "status": status.value,
            "owner_worker": frame.worker_id,
            "lease_until": format_time(lease_until) if lease_until else None,
            "row_count": frame.rows,
            "aggregate_version": frame.aggregate_version,
            "terminal_event_id": str(recorded.envelope.event_id) if stopped else None,
            "completed_at": format_time(recorded.ingest_time) if stopped else None,
            "stream_version": recorded.stream_version,
        }
    )


def _ended_frame(
    state: State, stage: Stage, frame: Frame, event: FrameCommitted | FrameFailed | FrameAbandoned, recorded: Recorded
) -> JsonObject:
    counts: JsonObject = {}
    if isinstance(event, FrameCommitted):
        counts = {"success": event.success, "failed": event.failed, "breaks": event.breaks}
    result = None if isinstance(event, FrameAbandoned) else event.result
    return without_absent(
        {
            **_identity(state, stage, frame, metrics=event.metrics if isinstance(event, FrameCommitted) else None),
            "status": _final_status(event).value,
            "owner_worker": frame.worker_id,
            "row_count": event.stop - event.start,
            **counts,
            "output_ref": (result or {}).get("reference"),
            "aggregate_version": recorded.aggregate_version,
            "terminal_event_id": str(recorded.envelope.event_id),
            "completed_at": format_time(recorded.ingest_time),
            "stream_version": recorded.stream_version,
        }
    )


def _final_status(event: FrameCommitted | FrameFailed | FrameAbandoned) -> FrameStatus:
    if isinstance(event, FrameCommitted):
        return FrameStatus.COMMITTED
    if event.outcome == FrameOutcome.BISECT:
        return FrameStatus.SPLIT
    return FrameStatus.FAILED if isinstance(event, FrameFailed) else FrameStatus.ABANDONED


def _identity(state: State, stage: Stage, frame: Frame, *, metrics: Mapping[str, Any] | None = None) -> JsonObject:
    cursor = without_absent(
        {
            "slot": frame.slot,
            "sequence": frame.sequence,
            "start": frame.start,
            "stop": frame.stop,
            "rows": frame.claimed.to_json() if frame.claimed else None,
            "rows_at": frame.claimed_at if frame.claimed else None,
            "metrics": dict(metrics) if metrics else None,
        }
    )
    return {
        "frame_id": frame.frame_id,
        "stage_id": stage.stage_id,
        "execution_id": str(state.execution.execution_id),
        "step": stage.step,
        "frame_index": frame.index,
        "parent_frame_id": frame.parent_frame_id,
        "cursor": cursor,
        "attempts": frame.attempt,
        "claimed_event_id": _id(frame.claimed_event_id),
        "created_at": format_time(frame.created_at) if frame.created_at else None,
        "started_at": format_time(frame.started_at) if frame.started_at else None,
    }


def _id(event_id: int) -> str | None:
    return str(event_id) if event_id else None
