"""How a step with a loop runs: its collection is fixed, items are given out as others end, and then it is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.children.state import ParkedCall
from noetl_core.commands.events import CommandIssued
from noetl_core.executions.evaluators import LOCALLY, Evaluator, Stored
from noetl_core.executions.names import entry_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.redriven_rows import redriven_rows
from noetl_core.executions.reducing import reduced
from noetl_core.executions.state import Execution
from noetl_core.ids import command_id, epoch_id
from noetl_core.locator import loop_locator
from noetl_core.loops.collection import collection_of, items_in, stored_size, width_of
from noetl_core.loops.events import LoopDone, LoopStarted
from noetl_core.loops.state import LOOP_REFERENCE, Loop
from noetl_core.playbook.expressions import render
from noetl_core.playbook.model import FailureBudget, FailureMode, LoopMode, Step
from noetl_core.playbook.model import Loop as LoopPlan
from noetl_core.streams.routing import chunk_view
from noetl_core.streams.state import Chunk

WIDTH: Final = "loop.spec.max_in_flight"


def open_loop(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    activation: int,
    cause_step: str,
    now: str,
    evaluator: Evaluator = LOCALLY,
    chunk: Chunk | None = None,
) -> LoopStarted:
    """The loop of an activation, its collection evaluated once and for all.

    Raises `TemplateFailed` and `LoopInvalid`; and `NeedsEvaluation` when events do not tell enough, or not carry it.
    """
    loop = plan.playbook.steps[step].loop or LoopPlan()
    names = entry_names(execution, plan, cause_step=cause_step, chunk=chunk_view(chunk) if chunk else None)
    again = redriven_rows(execution, step, activation)
    found = again or evaluator.value(
        "loop/in", lambda: items_in(render(loop.items, names, now=now, wants_data=True, path="loop.in"))
    )
    width = evaluator.value("loop/max_in_flight", lambda: render(loop.max_in_flight, names, now=now, path=WIDTH))
    stored = found if isinstance(found, Stored) else None
    items = None if isinstance(found, Stored) else collection_of(found)
    size = stored_size(stored.type, stored.count) if stored else len(items or ())
    in_flight = width_of(None if isinstance(width, Stored) else width)
    return LoopStarted(
        loop_id=epoch_id(execution_id=execution.execution_id, step=step, attempt=activation),
        step=step,
        activation=activation,
        mode=_mode(loop, knows_rows=again is not None).value,
        collection_size=size,
        max_in_flight=1 if loop.mode is LoopMode.SEQUENTIAL else in_flight,
        items=None if items is None else tuple(items),
        payload_ref=stored.ref if stored else None,
    )


def _mode(loop: LoopPlan, *, knows_rows: bool) -> LoopMode:
    """Rows that a cursor has given before are a collection like any other."""
    return LoopMode.PARALLEL if knows_rows and loop.mode is LoopMode.CURSOR else loop.mode


def issue_item(
    execution_id: int,
    plan: Plan,
    *,
    step: str,
    activation: int,
    index: int,
    cause_step: str,
    attempt: int,
    parked: ParkedCall | None = None,
    streamed: Mapping[str, Any] | None = None,
) -> CommandIssued:
    """An attempt at one item. Index 0 of a step is the command of one that has no loop."""
    return CommandIssued(
        command_id=command_id(
            execution_id=execution_id, step=step, activation=activation, index=index + 1, attempt=attempt
        ),
        step=step,
        pipeline=plan.playbook.steps[step].is_pipeline or None,
        activation=activation,
        attempt=attempt,
        pool=plan.pool,
        cause_step=cause_step,
        parked=parked.to_json() if parked else None,
        streamed=streamed,
        loop_id=epoch_id(execution_id=execution_id, step=step, attempt=activation),
        loop_iteration_index=index,
    )


def is_over(step: Step, loop: Loop) -> bool:
    """Whether every item has an outcome and no other can come; where none may begin, those that have begun."""
    has_ended = loop.ended >= loop.total and not loop.awaits
    return has_ended or (loop.running == 0 and gives_up(step, loop))


def close_loop(
    execution_id: int, plan: Plan, *, step: str, loop: Loop, error: Mapping[str, Any] | None = None
) -> LoopDone:
    """The end of a loop; `error` says why it ends if not for its items."""
    if error is None and plan.playbook.steps[step].reduce is not None:
        return _reduced(execution_id, step, loop)
    policy = plan.playbook.steps[step].loop
    budget = policy.failure_budget if policy else FailureBudget(count=0)
    if error is None and exceeds(budget, failed=loop.failed, total=loop.total):
        error = _budget_error(loop)
    status = _status(loop, stopped=error is not None and loop.ended < loop.total)
    return LoopDone(
        loop_id=loop.loop_id,
        step=step,
        activation=loop.activation,
        collection_size=loop.total,
        status=status,
        success=loop.success,
        failed=loop.failed,
        result=_result(execution_id, loop, status, error),
    )


def _reduced(execution_id: int, step: str, loop: Loop) -> LoopDone:
    """The end of a reduce stage, which has one result and no slots."""
    return LoopDone(
        loop_id=loop.loop_id,
        step=step,
        activation=loop.activation,
        collection_size=loop.total,
        status=_status(loop, stopped=False),
        success=loop.success,
        failed=loop.failed,
        result=reduced(execution_id, loop),
    )


def never_opened(execution_id: int, *, step: str, activation: int, error: Mapping[str, Any]) -> LoopDone:
    """The end of a loop that could not begin: this activation has one as every other."""
    loop_id = epoch_id(execution_id=execution_id, step=step, attempt=activation)
    loop = Loop(loop_id=loop_id, activation=activation, mode="", total=0)
    result = _result(execution_id, loop, "error", error)
    return LoopDone(loop_id=loop_id, step=step, activation=activation, collection_size=0, status="error", result=result)


def exceeds(budget: FailureBudget, *, failed: int, total: int | None) -> bool:
    """§7.8: more items have failed than may, by number or by share; of what is not known nobody can say a share."""
    if (budget.count is not None and failed > budget.count) or (budget.share == 0 and failed > 0):
        return True
    return budget.share is not None and total is not None and total > 0 and failed / total > budget.share


def may_begin(step: Step, loop: Loop) -> bool:
    """Whether another item may begin now."""
    has_room = loop.is_open and not loop.stage_id and loop.begun < loop.total and loop.running < loop.max_in_flight
    return has_room and not gives_up(step, loop)


def gives_up(step: Step, loop: Loop) -> bool:
    """With `fail_fast` no further item starts once too many have failed; those under way run to their end.

    While slots of a cursor may still find rows, more of them may go well: a share is judged when there are no more.
    """
    budget = step.loop.failure_budget if step.loop else FailureBudget(count=0)
    is_failing = exceeds(budget, failed=loop.failed, total=None if loop.awaits else loop.total)
    return is_failing and step.failure_mode is FailureMode.FAIL_FAST


def _status(loop: Loop, *, stopped: bool) -> str:
    if not loop.failed and not stopped:
        return "ok"
    return "partial" if loop.success else "error"


def _budget_error(loop: Loop) -> Mapping[str, Any]:
    first = loop.first_error or {}
    reason = f"; first item {first.get('index')}: {first.get('message')} ({first.get('code')})" if first else ""
    return {
        "kind": "unknown",
        "code": "loop.budget_exceeded",
        "retryable": False,
        "message": f"{loop.failed} of {loop.total} items failed, more than may{reason}"[:1000],
    }


def _cursor_result(loop: Loop, select: Mapping[str, Any]) -> Mapping[str, Any]:
    """§7.5: what a loop over a cursor tells has no slots: rows are processed, and only frames are listed."""
    told = {
        "processed": loop.ended,
        "failed": loop.failed,
        "breaks": loop.breaks,
        "frame_count": loop.frame_count,
    }
    stats = {place: value for place, value in select.items() if place != "/count"}
    select = {**stats, **{f"/{name}": value for name, value in told.items()}}
    return {**told, "cursor": True, "select": select, "unselected": ["/frames"]}


def _result(execution_id: int, loop: Loop, status: str, error: Mapping[str, Any] | None) -> Mapping[str, Any]:
    counts = {"total": loop.total, "success": loop.success, "failed": loop.failed}
    select = {"/status": status, "/count": loop.total, **{f"/stats/{name}": count for name, count in counts.items()}}
    context: dict[str, Any] = {
        **counts,
        "status": status,
        "count": loop.total,
        "select": select,
        "unselected": ["/results"],
    }
    if loop.mode == LoopMode.CURSOR:
        context |= _cursor_result(loop, select)
    if error is not None:
        context["error"] = dict(error)
    reference = {
        "type": LOOP_REFERENCE,
        "ref_id": str(loop_locator(execution_id=execution_id, loop_id=loop.loop_id)),
        "loop_id": loop.loop_id,
        "from_version": loop.started_version or 1,
    }
    return {
        "status": "ok" if error is None else "error",
        "reference": reference,
        "parent_ref": None,
        "context": context,
    }
