"""What must happen next. Pure: the same state, event and plan give the same facts, on every planner, for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.commands.events import CallFailed, CommandAbandoned, CommandCompleted, CommandFailed
from noetl_core.commands.state import Command
from noetl_core.events import Event
from noetl_core.executions.events import PlaybookInitialized, WorkflowInitialized
from noetl_core.executions.leaving import leave
from noetl_core.executions.plan import Plan
from noetl_core.executions.router import Router, issue
from noetl_core.executions.state import Arrival, Execution
from noetl_core.fold import State
from noetl_core.playbook.model import FailureMode
from noetl_core.recorded import Recorded
from noetl_core.timestamps import format_time


def is_cause(recorded: Recorded) -> bool:
    """Whether something may have to follow from this event."""
    return isinstance(recorded.content, PlaybookInitialized | CommandCompleted | CommandFailed | CommandAbandoned)


def decide(state: State, recorded: Recorded, plan: Plan) -> tuple[Event, ...]:
    """The facts that follow from one event, given the fold of everything up to it and of all earlier decisions."""
    if state.execution.status.is_final:
        return ()
    content = recorded.content
    match content:
        case PlaybookInitialized():
            entry = plan.playbook.entry_step
            router = Router(state.execution, plan, now=_now(recorded))
            router.add(WorkflowInitialized(entry_step=entry))
            router.arrive(Arrival(step=entry, cause_step=""))
            router.advance()
            return router.facts
        case CommandCompleted() | CommandFailed():
            command = state.commands[content.command_id]
            step = state.execution.steps[command.step]
            return _route(state.execution, plan, command, step.result or {}, now=_now(recorded))
        case CommandAbandoned():
            return _after_silence(state, state.commands[content.command_id], plan, now=_now(recorded))
        case _:
            return ()


def _now(cause: Recorded) -> str:
    """§6.6: `now()` in a control expression is the time of the event that is decided on."""
    return format_time(cause.envelope.event_time)


def _route(
    execution: Execution, plan: Plan, command: Command, result: Mapping[str, Any], *facts: Event, now: str
) -> tuple[Event, ...]:
    router = Router(execution, plan, now=now)
    for fact in facts:
        router.add(fact)
    update, exited = leave(execution, plan, step=command.step, activation=command.activation, result=result, now=now)
    if update is not None:
        router.update(update)
    router.leave(exited)
    failing_fast = plan.playbook.steps[command.step].failure_mode is FailureMode.FAIL_FAST
    if not exited.handled and failing_fast:
        router.end()
    else:
        router.advance()
    return router.facts


def _after_silence(state: State, command: Command, plan: Plan, *, now: str) -> tuple[Event, ...]:
    """Another attempt while there are any left; then the step fails, and its error arcs may still handle that."""
    if command.attempt < plan.max_attempts:
        following = issue(
            state.execution,
            plan,
            step=command.step,
            activation=command.activation,
            cause_step=command.cause_step,
            attempt=command.attempt + 1,
        )
        return (following,)
    error = {
        "kind": "unknown",
        "code": "command.attempts_exhausted",
        "retryable": False,
        "message": f"{command.attempt} workers went silent while running this step",
    }
    result = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}
    failed = CallFailed(command_id=command.command_id, step=command.step, result=result)
    return _route(state.execution, plan, command, result, failed, now=now)
