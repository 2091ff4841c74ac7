"""How facts change an execution. Total and pure: it never refuses a fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, assert_never

from noetl_core.children.state import ParentCall
from noetl_core.executions.amending import amended
from noetl_core.executions.arrivals import answered, arrived
from noetl_core.executions.events import (
    CtxUpdated,
    ExecutionCancelled,
    ExecutionEvent,
    ExecutionRetired,
    PlaybookCompleted,
    PlaybookFailed,
    PlaybookInitialized,
    StepEntered,
    StepExited,
    StepSkipped,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowInitialized,
)
from noetl_core.executions.state import Arrival, Execution, ExecutionStatus, Step, StepStatus
from noetl_core.loops.fold import note_before
from noetl_core.payloads import PayloadRef
from noetl_core.streams.state import Chunk
from noetl_core.values import replace


def evolve(execution: Execution, event: ExecutionEvent, *, event_time: datetime) -> Execution:
    """The execution after a fact about it."""
    match event:
        case PlaybookInitialized():
            return replace(
                execution,
                path=event.path,
                version=event.version,
                catalog_id=event.catalog_id,
                workload=event.payload_ref,
                started_at=event_time,
                depth=event.depth or 0,
                parent_call=ParentCall.from_json(event.parent_call) if event.parent_call else None,
                redrive_of=event.redrive_of or "",
                inherited=PayloadRef.from_json(event.inherited) if event.inherited else None,
                redriven_rows={"step": event.entry_step, **event.entry_rows} if event.entry_rows else None,
            )
        case WorkflowInitialized():
            chunk = Chunk.from_json(event.chunk) if event.chunk else None
            entry = Arrival(step=event.entry_step, cause_step=event.cause_step or "", chunk=chunk)
            return replace(execution, arrivals=(entry,), inherited=None)
        case StepEntered():
            return _enter(execution, event)
        case StepExited():
            return _exit(execution, event)
        case StepSkipped():
            return _skip(execution, event)
        case CtxUpdated():
            return _set_variables(execution, event)
        case WorkflowCompleted() | WorkflowFailed() | ExecutionRetired():
            return execution
        case PlaybookCompleted():
            return _end(execution, ExecutionStatus.COMPLETED, event_time)
        case PlaybookFailed():
            ended = _end(execution, ExecutionStatus.FAILED, event_time)
            return ended if execution.status.is_final else replace(ended, error=event.error)
        case ExecutionCancelled():
            ended = _end(execution, ExecutionStatus.CANCELLED, event_time)
            if execution.status.is_final or not event.cascade or not execution.children:
                return ended
            return replace(ended, cascades=True)
        case _:
            assert_never(event)


def _enter(execution: Execution, event: StepEntered) -> Execution:
    before = execution.steps.get(event.step)
    step = Step(
        status=StepStatus.ACTIVE,
        activation=event.activation,
        cause_step=event.cause_step,
        result=before.result if before else None,
        chunk=Chunk.from_json(event.chunk) if event.chunk else None,
        made_at=before.made_at if before else "",
    )
    consumed = replace(execution, arrivals=_without(execution.arrivals, event.step, event.consumes, event.chunk))
    return _with_step(consumed, event.step, step)


def _without(
    arrivals: tuple[Arrival, ...], step: str, causes: Iterable[str], chunk: Mapping[str, Any] | None
) -> tuple[Arrival, ...]:
    taken = Chunk.from_json(chunk) if chunk else None
    return answered(arrivals, (Arrival(step=step, cause_step=cause, chunk=taken) for cause in causes))


def _exit(execution: Execution, event: StepExited) -> Execution:
    before = execution.steps.get(event.step, Step(status=StepStatus.ACTIVE))
    status = StepStatus.FAILED if event.status == "error" else StepStatus.DONE
    known = event.repeated or ()
    fired = (Arrival(step=target, cause_step=event.step) for target in event.fired if target not in known)
    failure, failed_chunk = execution.failure, execution.failed_chunk
    if failure is None and not event.handled:
        failure, failed_chunk = event.error, before.chunk
    answers = {call: answer for call, answer in execution.answered.items() if answer.step != event.step}
    left = replace(
        execution,
        arrivals=arrived(execution.arrivals, fired),
        failure=failure,
        failed_chunk=failed_chunk,
        answered=answers,
    )
    result = before.result if event.result is None else event.result
    if event.amends:
        result = amended(result or {}, event.error or {})
    ended = replace(before, status=status, activation=event.activation, deadline=None, result=result)
    return _with_step(left, event.step, ended)


def _skip(execution: Execution, event: StepSkipped) -> Execution:
    """A step that was denied keeps what it had; the arrivals that asked for it are answered."""
    before = execution.steps.get(event.step, Step(status=StepStatus.SKIPPED))
    if event.consumes is None:
        waiting = tuple(arrival for arrival in execution.arrivals if arrival.step != event.step)
    else:
        waiting = _without(execution.arrivals, event.step, event.consumes, event.chunk)
    return _with_step(replace(execution, arrivals=waiting), event.step, replace(before, status=StepStatus.SKIPPED))


def _set_variables(execution: Execution, event: CtxUpdated) -> Execution:
    refs = dict(event.refs or {})
    names = {*event.values, *refs}
    loops = execution.loops
    if event.loop_id:
        old, old_refs = execution.variables, execution.variable_refs
        loops = note_before(loops, step=event.step, loop_id=event.loop_id, names=names, variables=old, refs=old_refs)
    return replace(
        execution,
        loops=loops,
        variables={**{k: v for k, v in execution.variables.items() if k not in names}, **event.values},
        variable_refs={**{k: v for k, v in execution.variable_refs.items() if k not in names}, **refs},
    )


def _with_step(execution: Execution, name: str, step: Step) -> Execution:
    return replace(execution, steps={**execution.steps, name: step})


def _end(execution: Execution, status: ExecutionStatus, event_time: datetime) -> Execution:
    if execution.status.is_final:
        return execution
    return replace(
        execution, status=status, ended_at=event_time, arrivals=(), answered={}, deadline=None, held=(), released=()
    )
