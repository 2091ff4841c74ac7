"""Gives up attempts at frames whose workers are silent, unless they were heard of since."""

from __future__ import annotations

from datetime import datetime

from noetl_core.catalog import to_draft
from noetl_core.envelope import Draft
from noetl_core.fold import State
from noetl_core.stages.dispatch import outcome_of
from noetl_core.stages.events import FrameAbandoned
from noetl_core.stages.leases import silent_frames
from noetl_core.stages.state import Frame, Stage
from noetl_core.timestamps import format_time


def silent_frame(state: State, *, through: datetime, reclaimer: str) -> Draft | None:
    """The frame that was silent for longest, as the event that gives it up."""
    found = next(iter(silent_frames(state.execution, through=through)), None)
    if found is None:
        return None
    stage, frame = found
    return abandonment(state, stage, frame, not_before=frame.lease_until or through, reclaimer=reclaimer)


def abandonment(state: State, stage: Stage, frame: Frame, *, not_before: datetime, reclaimer: str) -> Draft:
    """The event; the log refuses it while the lease lasts by PostgreSQL's clock, and after any heartbeat."""
    abandoned = FrameAbandoned(
        frame_id=frame.frame_id,
        stage_id=stage.stage_id,
        step=stage.step,
        loop_id=stage.loop_id,
        attempt=frame.attempt,
        frame_index=frame.index,
        start=frame.start,
        stop=frame.stop,
        slot=frame.slot,
        outcome=outcome_of(stage, frame, retryable=True).value,
        previous_owner=frame.worker_id,
        reclaimer=reclaimer,
        prior_lease_until=format_time(frame.lease_until or not_before),
        previous_attempt=frame.attempt,
        max_attempts=stage.bounds.max_attempts,
        retry_mode=stage.bounds.retry_mode,
    )
    return to_draft(
        abandoned,
        idempotency_key=f"{frame.key}/end",
        expected_aggregate_version=frame.aggregate_version,
        not_before=not_before,
        trace=state.execution.trace,
    )
