"""How facts change a stage, and the loop that it runs. Pure: no row is counted twice, and no slot taken on trust."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, assert_never

from noetl_core.errors import Corrupt
from noetl_core.executions.state import Execution
from noetl_core.ids import MAX_ID, frame_id
from noetl_core.loops.collection import MAX_IN_FLIGHT
from noetl_core.loops.fold import Loops
from noetl_core.loops.intervals import Intervals
from noetl_core.loops.state import Loop
from noetl_core.playbook.task_model import LoopMode
from noetl_core.recorded import Recorded
from noetl_core.stages.events import (
    FrameAbandoned,
    FrameCommitted,
    FrameDispatched,
    FrameEnd,
    FrameFailed,
    FrameHeartbeat,
    FrameStarted,
    StageClosed,
    StageEvent,
    StageOpened,
)
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.state import REMEMBERED, EndedFrame, Frame, FrameOutcome, Stage, attempt_key
from noetl_core.values import replace


def evolve(execution: Execution, event: StageEvent, recorded: Recorded) -> Execution:
    """The execution after a fact about one of its stages; facts about another epoch change nothing."""
    if isinstance(event, StageOpened):
        if event.max_in_flight > MAX_IN_FLIGHT:
            raise Corrupt(f"a stage has at most {MAX_IN_FLIGHT} slots, not {event.max_in_flight}")
        loops = {**execution.loops, event.step: loop_of(event, recorded.stream_version)}
        opened = replace(
            stage_of_event(event),
            opened_event_id=recorded.envelope.event_id,
            parent_event_id=_event_id(recorded.envelope.parent_event_id),
            opened_at=recorded.ingest_time,
        )
        return replace(execution, loops=loops, stages={**execution.stages, event.step: opened})
    stage = execution.stages.get(event.step)
    if stage is None or stage.stage_id != event.stage_id or not stage.is_open:
        return execution
    match event:
        case StageClosed():
            closed = replace(stage, status=event.status, frames={}, rest=(), sequences=())
            return _with(execution, closed, execution.loops)
        case FrameDispatched():
            return _dispatched(execution, stage, event, recorded)
        case FrameStarted() | FrameHeartbeat():
            return _heard_of(execution, stage, event, recorded)
        case FrameCommitted() | FrameFailed() | FrameAbandoned():
            return _ended(execution, stage, event, recorded)
        case _:
            assert_never(event)


def _event_id(text: str) -> int:
    """An id that an event names; whatever else stands there names none."""
    number = int(text) if 0 < len(text) <= 19 and text.isascii() and text.isdecimal() else 0
    return number if number <= MAX_ID else 0


def loop_of(event: StageOpened, stream_version: int) -> Loop:
    """The loop that the stage runs: it counts rows as other loops count items."""
    return Loop(
        loop_id=event.loop_id,
        activation=event.activation,
        mode=event.mode,
        total=event.collection_size,
        max_in_flight=event.max_in_flight,
        started_version=stream_version,
        items=event.items or (),
        collection=event.payload_ref,
        awaits=event.max_in_flight if event.mode == LoopMode.CURSOR else 0,
        stage_id=event.stage_id,
    )


def stage_of_event(event: StageOpened) -> Stage:
    """The stage as it opens: nothing of it has been given out."""
    return Stage(
        stage_id=event.stage_id,
        step=event.step,
        activation=event.activation,
        loop_id=event.loop_id,
        kind=event.kind,
        engine=event.engine,
        total=event.collection_size,
        max_in_flight=event.max_in_flight,
        bounds=FrameBounds.from_json(event.policy),
        pool=event.pool,
        is_cursor=event.mode == LoopMode.CURSOR,
        sources=event.sources or (),
        parent_stage_id=event.parent_stage_id or "",
    )


def close_stage(stage: Stage, *, status: str) -> StageClosed:
    """The end of a stage, with that of its loop: whatever is still held of it counts no more."""
    return StageClosed(
        stage_id=stage.stage_id,
        step=stage.step,
        activation=stage.activation,
        loop_id=stage.loop_id,
        kind=stage.kind,
        status=status,
        frame_count=stage.dispatched,
    )


def _dispatched(execution: Execution, stage: Stage, event: FrameDispatched, recorded: Recorded) -> Execution:
    earlier = stage.frames.get(event.frame_id)
    frame = Frame(
        frame_id=event.frame_id,
        index=event.frame_index,
        start=event.start,
        stop=event.stop,
        attempt=event.attempt,
        slot=event.slot,
        sequence=event.sequence,
        worker_id=event.worker_id,
        worker_locator=event.worker_locator or "",
        source=earlier.source if earlier else "",
        lease_until=recorded.ingest_time + timedelta(seconds=event.lease_seconds),
        dispatched_at=recorded.ingest_time,
        aggregate_version=recorded.aggregate_version,
        after=event.after or "",
        claim_id=event.claim_id or "",
        parent_frame_id=event.parent_frame_id or "",
        claimed=event.payload_ref,
        claimed_at=event.rows_at or 0,
        claimed_event_id=recorded.envelope.event_id,
        created_at=(earlier and earlier.created_at) or recorded.ingest_time,
    )
    stage = replace(
        stage,
        frames={**stage.frames, event.frame_id: frame},
        next_row=max(stage.next_row, event.stop),
        dispatched=max(stage.dispatched, event.frame_index + 1),
        rest=_without(stage.rest, event.start, event.stop),
        sequences=_with_next(stage, event),
    )
    return _with(execution, stage, _counting(execution.loops, stage, begun=frame.rows))


def _with_next(stage: Stage, event: FrameDispatched) -> tuple[int, ...]:
    """How many frames each slot has had, with one more. Every slot below has a number too, so the slot has to exist:
    a history that somebody forged would have as many of them made as it says."""
    if not 0 <= event.slot < stage.max_in_flight:
        raise Corrupt(f"a stage of {stage.max_in_flight} slots has no slot {event.slot}")
    before = (*stage.sequences, *(0 for _ in range(event.slot + 1 - len(stage.sequences))))
    return tuple(event.sequence + 1 if slot == event.slot else one for slot, one in enumerate(before))


def _heard_of(
    execution: Execution, stage: Stage, event: FrameStarted | FrameHeartbeat, recorded: Recorded
) -> Execution:
    frame = stage.frames.get(event.frame_id)
    if frame is None or not frame.held_by(event.worker_id, event.attempt):
        return execution
    frame = replace(frame, aggregate_version=recorded.aggregate_version)
    if isinstance(event, FrameHeartbeat):
        frame = replace(frame, lease_until=recorded.ingest_time + timedelta(seconds=event.lease_seconds))
    else:
        frame = replace(frame, started_at=recorded.ingest_time)
        if event.payload_ref is not None and frame.claimed is None:
            return _with_claimed(execution, stage, frame, event)
    return _with(execution, replace(stage, frames={**stage.frames, event.frame_id: frame}), execution.loops)


def _with_claimed(execution: Execution, stage: Stage, frame: Frame, event: FrameStarted) -> Execution:
    """A worker has claimed rows through a cursor: from here on they are the rows of this frame, in every attempt."""
    start, stop = event.start or 0, event.stop or 0
    frame = replace(frame, start=start, stop=stop, claimed=event.payload_ref, claimed_at=start)
    stage = replace(
        stage, frames={**stage.frames, frame.frame_id: frame}, next_row=max(stage.next_row, stop), total=stop
    )
    return _with(execution, stage, _counting(execution.loops, stage, total=frame.rows, begun=frame.rows))


def _ended(execution: Execution, stage: Stage, event: FrameEnd, recorded: Recorded) -> Execution:
    """The first end of an attempt counts; the log refuses any other."""
    frame = stage.frames.get(event.frame_id)
    if frame is None or not frame.is_held or frame.attempt != event.attempt:
        return execution
    ended = EndedFrame(
        key=attempt_key(event.frame_id, event.attempt),
        worker_id=frame.worker_id,
        ended_by=recorded.envelope.event_type,
        stream_version=recorded.stream_version,
    )
    others = {frame_id: one for frame_id, one in stage.frames.items() if frame_id != event.frame_id}
    stage = replace(stage, frames=others, ended=(*stage.ended, ended)[-REMEMBERED:])
    loops = execution.loops
    if stage.is_cursor and frame.claimed is None:
        stage, loops = _found_nothing(stage, frame, loops, event)
        if not isinstance(event, FrameCommitted) and event.outcome == FrameOutcome.RETRY:
            stage = _with_waiting(stage, frame, recorded)
        return _with(execution, stage, loops)
    if isinstance(event, FrameCommitted):
        left = max(frame.stop - event.stop, 0)
        loops = _counting(
            loops,
            stage,
            begun=-left,
            success=event.success,
            failed=event.failed,
            error=event.first_error,
            breaks=event.breaks,
            frames=1,
        )
        if stage.kind == "reduce" and stage.total == 1:
            loops = _with_outcome(loops, stage, event.result)
        return _with(execution, _with_rest(stage, frame, event.stop) if left else stage, loops)
    if event.outcome == FrameOutcome.RETRY:
        stage = _with_waiting(stage, replace(frame, after=""), recorded)
        return _with(execution, stage, _counting(loops, stage, begun=-frame.rows))
    if event.outcome == FrameOutcome.BISECT:
        middle = frame.start + frame.rows // 2
        stage = _with_part(stage, frame, frame.start, middle)
        stage = _with_part(stage, frame, middle, frame.stop)
        return _with(execution, stage, _counting(loops, stage, begun=-frame.rows))
    return _with(execution, stage, _counting(loops, stage, failed=frame.rows, error=_error_of(event)))


def _with_waiting(stage: Stage, frame: Frame, recorded: Recorded) -> Stage:
    """Nobody has the frame any more, and somebody is to have it again."""
    version = recorded.aggregate_version
    again = replace(
        frame,
        worker_id="",
        worker_locator="",
        source=frame.worker_locator or frame.source,
        lease_until=None,
        started_at=None,
        aggregate_version=version,
    )
    return replace(stage, frames={**stage.frames, frame.frame_id: again})


def _found_nothing(stage: Stage, frame: Frame, loops: Loops, event: FrameEnd) -> tuple[Stage, Loops]:
    """A slot whose claim gives no rows looks no more; one whose claim failed for good has failed once."""
    if not isinstance(event, FrameCommitted) and event.outcome == FrameOutcome.RETRY:
        return stage, loops
    is_new = frame.slot not in stage.drained
    if is_new:
        stage = replace(stage, drained=(*stage.drained, frame.slot))
    failed = 0 if isinstance(event, FrameCommitted) else 1
    error = None if isinstance(event, FrameCommitted) else _error_of(event)
    counted = _counting(loops, stage, awaits=-int(is_new), total=failed, begun=failed, failed=failed, error=error)
    return stage, counted


def _with_rest(stage: Stage, frame: Frame, stop: int) -> Stage:
    """Rows that a frame has left: of a collection they are a range, of a cursor a frame that waits with their rows."""
    if not stage.is_cursor:
        return replace(stage, rest=_with_range(stage.rest, stop, frame.stop))
    return _with_part(stage, frame, stop, frame.stop)


def _with_part(stage: Stage, frame: Frame, start: int, stop: int) -> Stage:
    """Some rows of a frame as a frame of their own, which waits to be dispatched."""
    following = Frame(
        frame_id=frame_id(stage_id=stage.stage_id, index=stage.dispatched),
        index=stage.dispatched,
        start=start,
        stop=stop,
        attempt=0,
        parent_frame_id=frame.frame_id,
        source=frame.worker_locator or frame.source,
        claimed=frame.claimed,
        claimed_at=frame.claimed_at,
    )
    return replace(stage, dispatched=stage.dispatched + 1, frames={**stage.frames, following.frame_id: following})


def attempts_exhausted(attempts: int) -> dict[str, Any]:
    """Why rows have failed whose workers went silent each time."""
    return {
        "kind": "unknown",
        "code": "frame.attempts_exhausted",
        "retryable": False,
        "message": f"{attempts} workers went silent while running this frame",
    }


def _error_of(event: FrameFailed | FrameAbandoned) -> Mapping[str, Any]:
    if isinstance(event, FrameAbandoned):
        error: Mapping[str, Any] = attempts_exhausted(event.attempt)
    else:
        error = ((event.result or {}).get("context") or {}).get("error") or {}
    return {"index": event.start, "code": error.get("code"), "message": error.get("message")}


def _counting(
    loops: Loops,
    stage: Stage,
    *,
    begun: int = 0,
    success: int = 0,
    failed: int = 0,
    error: Mapping[str, Any] | None = None,
    total: int = 0,
    awaits: int = 0,
    breaks: int = 0,
    frames: int = 0,
) -> Loops:
    loop = loops.get(stage.step)
    if loop is None or loop.stage_id != stage.stage_id or not loop.is_open:
        return loops
    counted = replace(
        loop,
        total=loop.total + total,
        awaits=loop.awaits + awaits,
        breaks=loop.breaks + breaks,
        frame_count=loop.frame_count + frames,
        begun=loop.begun + begun,
        success=loop.success + success,
        failed=loop.failed + failed,
        first_error=loop.first_error or (error if failed else None),
    )
    return {**loops, stage.step: counted}


def _with_outcome(loops: Loops, stage: Stage, result: Mapping[str, Any] | None) -> Loops:
    """The one output of a reduce is that of its step."""
    loop = loops.get(stage.step)
    if loop is None or loop.stage_id != stage.stage_id or not loop.is_open:
        return loops
    return {**loops, stage.step: replace(loop, outcome=result)}


def _with(execution: Execution, stage: Stage, loops: Loops) -> Execution:
    return replace(execution, loops=loops, stages={**execution.stages, stage.step: stage})


def _without(intervals: Intervals, start: int, stop: int) -> Intervals:
    """The rows without those from `start` to before `stop`."""
    left: list[tuple[int, int]] = []
    for first, last in intervals:
        if first < start:
            left.append((first, min(last, start - 1)))
        if last >= stop:
            left.append((max(first, stop), last))
    return tuple(left)


def _with_range(intervals: Intervals, start: int, stop: int) -> Intervals:
    """The rows with those from `start` to before `stop`, of which it has none yet."""
    return tuple(sorted((*intervals, (start, stop - 1))))
