"""The end of an execution that a call waits for: whoever ends it resumes the call in the same append.

Every ender goes through here: the planner's decisions, and api's cancel and finalize.
"""

from __future__ import annotations

from collections.abc import Callable

from noetl_core.append import AppendRequest, Hint, StreamAppend
from noetl_core.canonical import encode
from noetl_core.children.events import CommandResumed
from noetl_core.errors import AlreadyTerminal, NoetlError, NotFound
from noetl_core.events import is_terminal, to_draft
from noetl_core.executions.state import Execution
from noetl_core.values import replace

WORK_KIND = "command"
_STATUS = {"playbook.completed": "completed", "execution.cancelled": "cancelled"}
"""How a terminal event is told to the call; every other one is a failure."""


def with_parent(
    request: AppendRequest, execution: Execution, *, work_subject: Callable[[str, str], str]
) -> AppendRequest:
    """The request with what it means for the parent: nothing, unless it ends an execution that a call waits for."""
    call = execution.parent_call
    end = _end_of(request, execution.execution_id)
    if call is None or not end or not execution.parent_execution_id:
        return request
    parent_id = int(execution.parent_execution_id)
    resumed = CommandResumed(
        step=call.step,
        command_id=call.command_id,
        pipeline=call.pipeline or None,
        call_id=call.call_id,
        child_execution_id=str(execution.execution_id),
        status=_STATUS.get(end, "failed"),
    )
    draft = to_draft(resumed, idempotency_key=f"call/{call.call_id}/resumed", trace=execution.trace)
    hint = Hint(
        subject=work_subject(call.pool, WORK_KIND),
        body=encode({"execution_id": str(parent_id), "command_id": call.command_id}),
        execution_id=parent_id,
    )
    return replace(
        request,
        streams=(*request.streams, StreamAppend(execution_id=parent_id, drafts=(draft,))),
        hints=(*request.hints, hint),
    )


def is_about_parent(refusal: NoetlError, execution: Execution) -> bool:
    """Whether an end was refused because there is no parent left to resume: it is then appended without it."""
    if not execution.parent_execution_id:
        return False
    if isinstance(refusal, AlreadyTerminal):
        return refusal.facts.get("execution_id") == execution.parent_execution_id
    return isinstance(refusal, NotFound) and refusal.facts.get("name") == execution.parent_execution_id


def _end_of(request: AppendRequest, execution_id: int) -> str:
    return next(
        (
            draft.event_type
            for stream in request.streams
            if stream.execution_id == execution_id
            for draft in stream.drafts
            if is_terminal(draft.event_type)
        ),
        "",
    )
