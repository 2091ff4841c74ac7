"""Pauses and resumes an execution: which event that is, and whether there is anything to do at all."""

from __future__ import annotations

from noetl_core.catalog import to_draft
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyTerminal, NotPaused
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.ports.steering import SteerAction
from noetl_core.steering.events import ExecutionPaused, ExecutionResumed

from noetl_planner.application.asks import Steer


def steering_draft(state: State, ask: Steer) -> Draft | None:
    """The event to append; None if that was done before, by this caller or another one."""
    execution = state.execution
    if execution.status.is_final:
        raise AlreadyTerminal(str(execution.execution_id))
    is_paused = execution.status is ExecutionStatus.PAUSED
    if ask.action is SteerAction.PAUSE:
        content: ExecutionPaused | ExecutionResumed = ExecutionPaused(reason=ask.reason, paused_by=ask.by)
        is_done = is_paused
    else:
        if not execution.pauses:
            raise NotPaused(str(execution.execution_id))
        content = ExecutionResumed(reason=ask.reason, resumed_by=ask.by)
        is_done = not is_paused
    if is_done:
        return None
    return to_draft(content, idempotency_key=f"steer/{state.stream_version + 1}", trace=execution.trace)
