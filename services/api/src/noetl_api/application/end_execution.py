"""Ends executions from outside of their planner, and resumes whoever waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_contracts.subjects import CANCEL_SUBJECT, work_subject
from noetl_core.append import Appended, AppendRequest, Hint, StreamAppend
from noetl_core.canonical import encode
from noetl_core.children.ending import is_about_parent, with_parent
from noetl_core.envelope import Draft
from noetl_core.errors import NoetlError
from noetl_core.executions.state import Execution
from noetl_core.fold import empty, fold
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.recorded import record


class EndExecution:
    """Appends a terminal event; workers are told by the hint that is committed with it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def first_look(self, scope: Scope | None, execution_id: int) -> Execution:
        """An execution as its first event tells it: whose it is, and which call waits for it."""
        page = await self._log.read(scope, execution_id, limit=1)
        return fold(empty(execution_id), record(page.events[0])).execution

    async def __call__(self, execution: Execution, drafts: Sequence[Draft], *, producer: str) -> tuple[Appended, ...]:
        """Append the drafts, the last of which ends the execution. A parent that has ended needs no answer."""
        alone = AppendRequest(
            tenant_id=execution.tenant_id,
            organization_id=execution.organization_id,
            streams=(StreamAppend(execution_id=execution.execution_id, drafts=tuple(drafts)),),
            hints=(stop_hint(execution.execution_id),),
            producer=producer,
        )
        try:
            appended = await self._log.append(with_parent(alone, execution, work_subject=_work_subject))
        except NoetlError as refusal:
            if not is_about_parent(refusal, execution):
                raise
            appended = await self._log.append(alone)
        return appended[: len(drafts)]


def stop_hint(execution_id: int) -> Hint:
    """Tells workers to stop the calls of an execution."""
    return Hint(subject=CANCEL_SUBJECT, body=encode({"execution_id": str(execution_id)}), execution_id=execution_id)


def _work_subject(pool: str, kind: str) -> str:
    return work_subject(pool=pool, kind=kind)
