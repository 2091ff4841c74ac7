"""Pauses and resumes executions for people; the planner does it, because it knows what must be held back."""

from __future__ import annotations

from noetl_core.errors import InvalidInput, Unavailable
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.steering import SteerAction, Steered, Steering
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger

from noetl_api.application.cancel_execution import MAX_REASON_CHARACTERS
from noetl_api.application.scopes import visible_scope

logger = get_logger()


class SteerExecution:
    """Who may see an execution and write may steer it; others' executions do not exist."""

    def __init__(self, log: EventLog, planner: Steering | None) -> None:
        self._log = log
        self._planner = planner

    async def __call__(
        self, caller: Caller, scope: Scope | None, execution_id: int, action: SteerAction, *, reason: str = ""
    ) -> Steered:
        """Do it; raises `AlreadyTerminal`, `NotPaused`, or `Unavailable` while nobody plans the execution."""
        caller.require(Role.WRITER)
        check_reason(reason)
        await self._log.read(visible_scope(caller, scope), execution_id, limit=1)  # raises NotFound
        if self._planner is None:
            raise Unavailable("this api knows no planner (NOETL_PLANNER_ADDRESS), so that it can pause nothing")
        steered = await self._planner.steer(execution_id, action, by=caller.name, reason=reason)
        version = steered.stream_version
        logger.info("execution.steered", execution_id=str(execution_id), action=action.value, stream_version=version)
        return steered


def check_reason(reason: str) -> None:
    """A reason is for people, and stands in an event."""
    if len(reason) > MAX_REASON_CHARACTERS:
        raise InvalidInput(f"a reason has at most {MAX_REASON_CHARACTERS} characters")
