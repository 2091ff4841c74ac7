"""Leases of frames: whose worker has been silent for too long. Pure; PostgreSQL's clock judges in the end."""

from __future__ import annotations

from datetime import datetime

from noetl_core.executions.state import Execution
from noetl_core.stages.state import Frame, Stage


def silent_frames(execution: Execution, *, through: datetime) -> list[tuple[Stage, Frame]]:
    """Frames whose leases were over at a time, the longest silent first."""
    if execution.status.is_final:
        return []
    found = [
        (frame.lease_until, stage, frame)
        for stage in execution.stages.values()
        for frame in stage.held
        if frame.lease_until is not None and frame.lease_until <= through
    ]
    return [(stage, frame) for _, stage, frame in sorted(found, key=lambda one: (one[0], one[2].frame_id))]


def next_lease_end(execution: Execution) -> datetime | None:
    """When the first lease of a frame is over, unless its worker is heard of before."""
    if execution.status.is_final:
        return None
    leases = (frame.lease_until for stage in execution.stages.values() for frame in stage.held)
    return min((until for until in leases if until is not None), default=None)
