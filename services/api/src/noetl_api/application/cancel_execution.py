"""Ends an execution because somebody wants it to end, and what it has started with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noetl_core.append import END_KEY, AppendRequest, Fence, StreamAppend
from noetl_core.children.events import ExecutionCascaded
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyTerminal, InvalidInput, Unavailable
from noetl_core.events import is_terminal, to_draft
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.executions.state import Execution
from noetl_core.ports.descendants import Descendants
from noetl_core.ports.event_log import EventLog, Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import current_traceparent

from noetl_api.application.end_execution import EndExecution, stop_hint
from noetl_api.application.fenced_log import fenced_log
from noetl_api.application.scopes import acting_scope, visible_scope

logger = get_logger()

CANCELLED: Final = "execution.cancelled"
MAX_REASON_CHARACTERS: Final = 1000
CASCADED_KEY: Final = "execution/cascaded"
CASCADE_BATCH: Final = 100
"""Executions that end in one append."""
MAX_CASCADE_ROUNDS: Final = 1000
_TAIL: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Where the execution was cancelled, and how many descendants this request has cancelled."""

    stream_version: int
    descendants: int = 0


class CancelExecution:
    """Cancelling is an event like any other.

    The execution ends first: from then on nobody can start a child under it, so what is listed below it is complete.
    Repeating the request goes on where it was interrupted.
    """

    def __init__(self, log: EventLog, descendants: Descendants) -> None:
        self._log = log
        self._end = EndExecution(log)
        self._descendants = descendants

    def under(self, caller: Caller, fence: Fence | None) -> CancelExecution:
        """The same, for as long as the caller's lease lasts."""
        return self if fence is None else CancelExecution(fenced_log(self._log, caller, fence), self._descendants)

    async def __call__(
        self, caller: Caller, scope: Scope | None, execution_id: int, *, reason: str = "", cascade: bool = True
    ) -> Cancelled:
        """Cancel it; `AlreadyTerminal` if it ended in another way."""
        caller.require(Role.WRITER)
        if len(reason) > MAX_REASON_CHARACTERS:
            raise InvalidInput(f"a reason has at most {MAX_REASON_CHARACTERS} characters")
        execution = await self._end.first_look(visible_scope(caller, scope), execution_id)
        owner = Scope(tenant_id=execution.tenant_id, organization_id=execution.organization_id)
        acting_scope(caller, owner)
        version = await self._cancel(caller, owner, execution, reason, cascade=cascade)
        count = await self._cascade(caller, owner, execution_id, reason) if cascade else 0
        return Cancelled(stream_version=version, descendants=count)

    async def _cancel(self, caller: Caller, owner: Scope, execution: Execution, reason: str, *, cascade: bool) -> int:
        execution_id = execution.execution_id
        draft = _draft(caller, reason, cascade=cascade)
        try:
            (appended,) = await self._end(execution, [draft], producer=f"urn:noetl:user:{caller.name}")
        except AlreadyTerminal:
            cancelled = await self._cancelled_at(owner, execution_id)
            if cancelled is None:
                raise
            return cancelled
        version = appended.event.stream_version
        logger.info("execution.cancelled", execution_id=str(execution_id), stream_version=version)
        return version

    async def _cascade(self, caller: Caller, owner: Scope, execution_id: int, reason: str) -> int:
        """End what stands below, from the top down, until nothing does."""
        count = 0
        for _ in range(MAX_CASCADE_ROUNDS):
            below = await self._descendants.open_descendants(execution_id, limit=CASCADE_BATCH)
            if not below:
                await self._tell_cascaded(caller, owner, execution_id)
                return count
            ended = await self._cancel_together(caller, owner, below, reason)
            count += ended
            logger.info("execution.cascaded", execution_id=str(execution_id), cancelled=ended)
        raise Unavailable(f"execution {execution_id} has more descendants than can be ended now: repeat the request")

    async def _tell_cascaded(self, caller: Caller, owner: Scope, execution_id: int) -> None:
        """Until this is known, somebody comes back to look whether all have ended."""
        if not await self._descendants.has_children(execution_id):
            return
        draft = to_draft(ExecutionCascaded(), idempotency_key=CASCADED_KEY, trace=current_traceparent() or "")
        await self._log.append(
            AppendRequest(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                streams=(StreamAppend(execution_id=execution_id, drafts=(draft,)),),
                producer=f"urn:noetl:user:{caller.name}",
            )
        )

    async def _cancel_together(self, caller: Caller, owner: Scope, ids: tuple[int, ...], reason: str) -> int:
        """One append, or one by one if somebody has ended meanwhile; parents have ended and need not be resumed."""
        try:
            await self._append(caller, owner, ids, reason)
        except AlreadyTerminal:
            return sum([await self._cancel_alone(caller, owner, one, reason) for one in ids])
        return len(ids)

    async def _cancel_alone(self, caller: Caller, owner: Scope, execution_id: int, reason: str) -> int:
        try:
            await self._append(caller, owner, (execution_id,), reason)
        except AlreadyTerminal:
            return 0
        return 1

    async def _append(self, caller: Caller, owner: Scope, ids: tuple[int, ...], reason: str) -> None:
        draft = _draft(caller, reason, cascade=None)
        await self._log.append(
            AppendRequest(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                streams=tuple(StreamAppend(execution_id=one, drafts=(draft,)) for one in ids),
                hints=tuple(stop_hint(one) for one in ids),
                producer=f"urn:noetl:user:{caller.name}",
            )
        )

    async def _cancelled_at(self, owner: Scope, execution_id: int) -> int | None:
        """Where the execution was cancelled, if that is how it ended; little but ends of loops can follow that."""
        below = (await self._log.read(owner, execution_id, limit=1)).head_version + 1
        while below > 1:
            first = max(below - _TAIL, 1)
            tail = await self._log.read(owner, execution_id, from_version=first, limit=below - first)
            for event in reversed(tail.events):
                event_type = event.envelope().event_type
                if is_terminal(event_type):
                    return event.stream_version if event_type == CANCELLED else None
            below = first
        return None


def _draft(caller: Caller, reason: str, *, cascade: bool | None) -> Draft:
    return to_draft(
        ExecutionCancelled(reason=reason, cancelled_by=caller.name, cascade=cascade),
        idempotency_key=END_KEY,
        trace=current_traceparent() or "",
    )
