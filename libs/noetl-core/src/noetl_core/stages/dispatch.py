"""Which rows a free slot gets next, and what becomes of an attempt that gave nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from noetl_core.executions.looping import gives_up
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution, ExecutionStatus, StepStatus
from noetl_core.ids import frame_id
from noetl_core.placement import Placement, placed
from noetl_core.ports.commands import Worker
from noetl_core.stages.events import FrameDispatched
from noetl_core.stages.state import Frame, FrameOutcome, Stage

HINTED_AT_ONCE: Final = 200
"""Slots that workers are woken for when a stage opens; each that is taken has the one so far behind it hinted."""


def stage_of(execution: Execution, stage_id: str) -> Stage | None:
    """The stage of this id, if it is the last of its step."""
    return next((stage for stage in execution.stages.values() if stage.stage_id == stage_id), None)


def may_dispatch(execution: Execution, plan: Plan, stage: Stage) -> bool:
    """Whether another frame of the stage may begin now."""
    step, loop = execution.steps.get(stage.step), execution.loops.get(stage.step)
    if step is None or step.status is not StepStatus.ACTIVE or step.activation != stage.activation:
        return False
    if execution.status is not ExecutionStatus.RUNNING or not stage.is_open or not stage.frames_left:
        return False
    return loop is not None and loop.is_open and not gives_up(plan.playbook.steps[stage.step], loop)


def offered_slots(execution: Execution, plan: Plan, stage: Stage, *, limit: int = HINTED_AT_ONCE) -> list[int]:
    """Slots for which there is a frame and no worker yet: as many as frames are left, and never all of a wide stage."""
    if not may_dispatch(execution, plan, stage):
        return []
    free: Iterator[int] = (slot for slot in stage.free_slots() if stage.may_take(slot))
    return [slot for slot, _ in zip(free, range(min(limit, stage.frames_left)), strict=False)]


def next_frame(
    stage: Stage,
    *,
    slot: int,
    worker: Worker,
    source: str = "",
    after: Frame | None = None,
    lease_seconds: float = 0,
    max_rows: int = 0,
    claim_id: str = "",
) -> FrameDispatched | None:
    """What a slot is given: frames that were lost, the nearest first, then rows that others left, then new rows.

    `source` is where the rows of a new frame are. Nothing if they are farther than the worker takes.
    """
    if not stage.may_take(slot):
        return None
    placement, again = _nearest(stage, worker, source)
    if not placement.is_allowed:
        return None
    max_rows = min(max_rows or stage.bounds.max_rows, stage.bounds.max_rows)
    if again is not None:
        index, attempt, start, stop = again.index, again.attempt + 1, again.start, again.stop
    elif stage.is_cursor:
        index, attempt, start, stop = stage.dispatched, 1, 0, 0  # which rows, its worker will say
    else:
        index, attempt = stage.dispatched, 1
        start, end = (stage.rest[0][0], stage.rest[0][1] + 1) if stage.rest else (stage.next_row, stage.total)
        stop = min(start + max_rows, end)
    return FrameDispatched(
        frame_id=again.frame_id if again else frame_id(stage_id=stage.stage_id, index=index),
        stage_id=stage.stage_id,
        step=stage.step,
        loop_id=stage.loop_id,
        attempt=attempt,
        frame_index=index,
        start=start,
        stop=stop,
        slot=slot,
        sequence=stage.sequence_of(slot),
        worker_id=worker.worker_id,
        lease_seconds=lease_seconds or stage.bounds.lease_seconds,
        after=after.key if after else None,
        rows_at=again.claimed_at if again and again.claimed else None,
        payload_ref=again.claimed if again else None,
        parent_frame_id=(again.parent_frame_id or None) if again else None,
        claim_id=claim_id or None,
        **placement.facts(),
    )


def _nearest(stage: Stage, worker: Worker, source: str) -> tuple[Placement, Frame | None]:
    """Of the frames that wait, the nearest to the worker, the oldest of equals; a new one if none does."""
    places = [
        (placed(locator=worker.locator, locality=worker.locality, source=frame.source or source), frame)
        for frame in stage.waiting
    ]
    if not places:
        return placed(locator=worker.locator, locality=worker.locality, source=source), None
    return min(places, key=lambda one: (one[0].rank, one[1].index))


def outcome_of(stage: Stage, frame: Frame, *, retryable: bool) -> FrameOutcome:
    """Whether the rows of an attempt that gave nothing are tried again."""
    if retryable and frame.attempt < stage.bounds.max_attempts:
        return FrameOutcome.RETRY
    return FrameOutcome.BISECT if stage.bounds.on_failure == "bisect" and frame.rows > 1 else FrameOutcome.FINAL
