"""What must happen next. Pure: the same state, event and plan give the same facts, on every planner, for ever."""

from __future__ import annotations

from noetl_core.commands.events import CallFailed, CommandAbandoned, CommandCompleted, CommandFailed, CommandIssued
from noetl_core.commands.state import Command
from noetl_core.deadlines.decide import after_deadline, counts
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.events import Event
from noetl_core.executions.beginning import begin
from noetl_core.executions.continuing import (
    Left,
    after_item,
    go_on,
    go_on_without,
    is_of_open_loop,
    route_call,
    router_for,
)
from noetl_core.executions.evaluation import Evaluation
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.executions.left_open import EndOfExecution, close_left_open
from noetl_core.executions.looping import issue_item
from noetl_core.executions.plan import Plan
from noetl_core.executions.router import issue
from noetl_core.fold import State
from noetl_core.recorded import Recorded
from noetl_core.stages.decide import after_frame
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameFailed
from noetl_core.steering.events import ExecutionResumed
from noetl_core.steering.fold import is_held
from noetl_core.steering.release import release
from noetl_core.streams.events import CallPartial
from noetl_core.streams.state import Place as StreamPlace


def decide(state: State, recorded: Recorded, plan: Plan) -> tuple[Event, ...]:
    """The facts that follow from one event, given the fold of everything up to it and of all earlier decisions."""
    content = recorded.content
    if isinstance(content, EndOfExecution):
        return close_left_open(state, content, plan)
    if state.execution.status.is_final or is_held(state.execution, recorded):
        return ()
    match content:
        case PlaybookInitialized():
            return begin(state, content, plan, recorded)
        case CommandCompleted() | CommandFailed():
            command = state.commands[content.command_id]
            if not counts(state, command):
                return ()
            if command.evaluation is not None:
                return go_on(state, command, plan, recorded)
            if command.loop_index is not None:
                return after_item(state, command, plan, recorded)
            step = state.execution.steps[command.step]
            return route_call(state, plan, Left.by(command, step.result or {}), recorded)
        case CallPartial():
            router = router_for(state, plan, recorded)
            router.advance()
            return router.facts
        case CommandAbandoned():
            command = state.commands[content.command_id]
            return _after_silence(state, command, plan, recorded) if counts(state, command) else ()
        case FrameCommitted() | FrameFailed() | FrameAbandoned():
            return after_frame(state, content, plan, recorded)
        case DeadlinePassed():
            return after_deadline(state, content, plan, recorded)
        case ExecutionResumed():
            return release(state, recorded, plan, decide)
        case _:
            return ()


def _after_silence(state: State, command: Command, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """Another attempt while there are any left; then the step fails, and its error arcs may still handle that."""
    if command.loop_index is not None and not is_of_open_loop(state, command):
        return ()
    if command.attempt < plan.max_attempts:
        return (_next_attempt(state, command, plan),)
    error = {
        "kind": "unknown",
        "code": "command.attempts_exhausted",
        "retryable": False,
        "message": f"{command.attempt} workers went silent while running this step",
    }
    if command.evaluation is not None:
        return go_on_without(error, state, command, plan, cause)
    result = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}
    failed = CallFailed(**command.of_command, result=result, **command.of_item)
    if command.loop_index is not None:
        return after_item(state, command, plan, cause, failed)
    return route_call(state, plan, Left.by(command, result), cause, failed)


def _next_attempt(state: State, command: Command, plan: Plan) -> CommandIssued:
    if command.evaluation is not None:
        return Evaluation.from_json(command.evaluation).issue(
            execution_id=state.execution.execution_id,
            pool=plan.pool,
            cause_step=command.cause_step,
            attempt=command.attempt + 1,
            stage_id=command.stage_id,
        )
    if command.loop_index is not None:
        return issue_item(
            state.execution.execution_id,
            plan,
            step=command.step,
            activation=command.activation,
            index=command.loop_index,
            cause_step=command.cause_step,
            attempt=command.attempt + 1,
            parked=command.parked,
            streamed=command.streamed.to_json() if command.streamed != StreamPlace() else None,
        )
    return issue(
        state.execution,
        plan,
        step=command.step,
        activation=command.activation,
        cause_step=command.cause_step,
        attempt=command.attempt + 1,
        parked=command.parked,
        streamed=command.streamed if command.streamed != StreamPlace() else None,
    )
