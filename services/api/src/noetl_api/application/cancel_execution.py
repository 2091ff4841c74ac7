"""Ends an execution because somebody wants it to end."""

from __future__ import annotations

from typing import Final

from noetl_contracts.subjects import CANCEL_SUBJECT
from noetl_core.append import END_KEY, AppendRequest, Hint, StreamAppend
from noetl_core.canonical import encode
from noetl_core.errors import AlreadyTerminal, InvalidInput
from noetl_core.events import is_terminal, to_draft
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.ports.event_log import EventLog, Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import current_traceparent

from noetl_api.application.scopes import acting_scope, visible_scope

logger = get_logger()

CANCELLED: Final = "execution.cancelled"
MAX_REASON_CHARACTERS: Final = 1000
_TAIL: Final = 20


class CancelExecution:
    """Cancelling is an event like any other; workers are told by the hint that is committed with it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def __call__(self, caller: Caller, scope: Scope | None, execution_id: int, *, reason: str = "") -> int:
        """The version of the event that cancelled it; `AlreadyTerminal` if it ended in another way."""
        caller.require(Role.WRITER)
        if len(reason) > MAX_REASON_CHARACTERS:
            raise InvalidInput(f"a reason has at most {MAX_REASON_CHARACTERS} characters")
        owner = await self._owner(caller, scope, execution_id)
        try:
            version = await self._append(caller, owner, execution_id, reason)
        except AlreadyTerminal:
            cancelled = await self._cancelled_at(owner, execution_id)
            if cancelled is None:
                raise
            return cancelled
        logger.info("execution.cancelled", execution_id=str(execution_id), stream_version=version)
        return version

    async def _owner(self, caller: Caller, scope: Scope | None, execution_id: int) -> Scope:
        visible = visible_scope(caller, scope)
        if visible is not None:
            return visible
        page = await self._log.read(None, execution_id, limit=1)
        first = page.events[0].envelope()
        return acting_scope(caller, Scope(tenant_id=first.tenant_id, organization_id=first.organization_id))

    async def _append(self, caller: Caller, owner: Scope, execution_id: int, reason: str) -> int:
        draft = to_draft(
            ExecutionCancelled(reason=reason, cancelled_by=caller.name),
            idempotency_key=END_KEY,
            trace=current_traceparent() or "",
        )
        hint = Hint(subject=CANCEL_SUBJECT, body=encode({"execution_id": str(execution_id)}), execution_id=execution_id)
        appended = await self._log.append(
            AppendRequest(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                streams=(StreamAppend(execution_id=execution_id, drafts=(draft,)),),
                hints=(hint,),
                producer=f"urn:noetl:user:{caller.name}",
            )
        )
        return appended[0].event.stream_version

    async def _cancelled_at(self, owner: Scope, execution_id: int) -> int | None:
        """Where the execution was cancelled, if that is how it ended; little can follow a terminal event."""
        head = (await self._log.read(owner, execution_id, limit=1)).head_version
        tail = await self._log.read(owner, execution_id, from_version=max(head - _TAIL, 1), limit=_TAIL * 2)
        for event in reversed(tail.events):
            event_type = event.envelope().event_type
            if is_terminal(event_type):
                return event.stream_version if event_type == CANCELLED else None
        return None
