"""Forces the end of an execution, good or bad, whatever it is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noetl_core.append import END_KEY
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyTerminal, InvalidInput, KeyTaken
from noetl_core.events import Event, to_draft
from noetl_core.executions.events import PlaybookCompleted, PlaybookFailed, WorkflowCompleted, WorkflowFailed
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.event_log import EventLog, Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import current_traceparent

from noetl_api.application.end_execution import EndExecution
from noetl_api.application.scopes import acting_scope, visible_scope
from noetl_api.application.steer_execution import check_reason

logger = get_logger()

WORKFLOW_KEY: Final = "finalize/workflow"
FINALIZED: Final = "execution.finalized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalized:
    """Where and how the execution ended."""

    stream_version: int
    status: str


class FinalizeExecution:
    """Works without the planner, as cancelling does: it is the way out when nothing else helps."""

    def __init__(self, log: EventLog) -> None:
        self._end = EndExecution(log)

    async def __call__(
        self, caller: Caller, scope: Scope | None, execution_id: int, *, status: str = "", reason: str = ""
    ) -> Finalized:
        """End it; a repetition is answered with the first end, and `AlreadyTerminal` if it ended in another way."""
        caller.require(Role.WRITER)
        check_reason(reason)
        wanted = _status(status)
        execution = await self._end.first_look(visible_scope(caller, scope), execution_id)
        acting_scope(caller, Scope(tenant_id=execution.tenant_id, organization_id=execution.organization_id))
        drafts = _drafts(wanted, by=caller.name, reason=reason)
        try:
            appended = await self._end(execution, drafts, producer=f"urn:noetl:user:{caller.name}")
        except KeyTaken as taken:  # Somebody has finalized it in another way, or for another reason.
            raise AlreadyTerminal(str(execution_id)) from taken
        version = appended[-1].event.stream_version
        if not appended[-1].duplicate:
            logger.info(
                "execution.finalized", execution_id=str(execution_id), status=wanted.value, stream_version=version
            )
        return Finalized(stream_version=version, status=wanted.value)


def _status(text: str) -> ExecutionStatus:
    wanted = text.upper() or ExecutionStatus.FAILED.value
    if wanted not in (ExecutionStatus.COMPLETED, ExecutionStatus.FAILED):
        raise InvalidInput(f"an execution is finalized as COMPLETED or FAILED, not as {text[:40]!r}")
    return ExecutionStatus(wanted)


def _drafts(status: ExecutionStatus, *, by: str, reason: str) -> tuple[Draft, Draft]:
    workflow: Event
    playbook: Event
    if status is ExecutionStatus.COMPLETED:
        workflow, playbook = WorkflowCompleted(), PlaybookCompleted(finalized_by=by, reason=reason)
    else:
        error = {"kind": "unknown", "code": FINALIZED, "message": reason or f"{by} has ended the execution"}
        workflow, playbook = WorkflowFailed(error=error), PlaybookFailed(error=error, finalized_by=by, reason=reason)
    trace = current_traceparent() or ""
    return (
        to_draft(workflow, idempotency_key=WORKFLOW_KEY, trace=trace),
        to_draft(playbook, idempotency_key=END_KEY, trace=trace),
    )
