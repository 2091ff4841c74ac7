"""What a worker gets with a frame."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from noetl_core.executions.reducing import REDUCE
from noetl_core.fold import State
from noetl_core.ids import effect_key
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.frames import FrameKey, GrantedFrame
from noetl_core.stages.rows import FrameRows
from noetl_core.stages.state import Frame, Stage

from noetl_planner.application.grants import known_results, visible_variables

NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


def grant_frame(state: State, stage: Stage, frame: Frame, *, now: datetime) -> GrantedFrame:
    """Everything that its worker needs to run a frame; one that has it already has used some of its lease."""
    execution = state.execution
    loop = execution.loops[stage.step]
    step = execution.steps[stage.step]
    granted = GrantedCommand(
        key=CommandKey(execution_id=execution.execution_id, command_id=frame.key),
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        catalog_id=execution.catalog_id,
        step=stage.step,
        activation=stage.activation,
        attempt=frame.attempt,
        lease_seconds=stage.bounds.lease_seconds,
        idempotency_key=effect_key(execution_id=execution.execution_id, step=stage.step, activation=stage.activation),
        issued_at=frame.dispatched_at or NEVER,
        workload=execution.workload,
        results=known_results(execution),
        variables=visible_variables(execution, loop),
        cause_step=step.cause_step,
        trace=execution.trace,
        pool=stage.pool,
        chunk=step.chunk,
    )
    collection = frame.claimed or loop.collection
    is_reduce = stage.kind == REDUCE
    rows = FrameRows(
        stage_id=stage.stage_id,
        loop_id=stage.loop_id,
        index=frame.index,
        slot=frame.slot,
        start=frame.start,
        stop=frame.stop,
        total=stage.total,
        bounds=stage.bounds,
        values=None if collection or stage.is_cursor or is_reduce else tuple(loop.items[frame.start : frame.stop]),
        collection=collection,
        collection_at=frame.claimed_at,
        claims=stage.is_cursor and frame.claimed is None,
        kind=stage.kind,
        sources=stage.sources,
    )
    key = FrameKey(execution_id=execution.execution_id, frame_id=frame.frame_id, attempt=frame.attempt)
    left = max((frame.lease_until - now).total_seconds(), 0.0) if frame.lease_until is not None else None
    return GrantedFrame(key=key, step=granted, rows=rows, lease_left_seconds=left)
