"""What follows from a deadline that has passed. Pure, like every decision."""

from __future__ import annotations

from noetl_core.children.events import CommandResumed
from noetl_core.children.state import TIMED_OUT
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.fold import is_running
from noetl_core.deadlines.state import DeadlineOf
from noetl_core.events import Event
from noetl_core.executions.continuing import Left, route, router_for
from noetl_core.executions.open_loops import OpenLoops
from noetl_core.executions.plan import Plan
from noetl_core.fold import State
from noetl_core.recorded import Recorded

EXECUTION_TIMEOUT = "execution.timeout"


def after_deadline(state: State, passed: DeadlinePassed, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """The facts that follow; none if the thing had ended before its time was up."""
    match passed.what:
        case DeadlineOf.EXECUTION:
            return _end_execution(state, passed, plan, cause)
        case DeadlineOf.STEP:
            return _leave_step(state, passed, plan, cause)
        case DeadlineOf.COMMAND:
            return _stop_waiting(state, passed)
        case _:
            return ()


def _end_execution(state: State, passed: DeadlinePassed, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """The execution ends now, as with `fail_fast`; nothing else is started, not even its final step."""
    router = router_for(state, plan, cause)
    message = f"the execution had not ended by {passed.deadline}"
    router.fail({"kind": "timeout", "code": EXECUTION_TIMEOUT, "message": message})
    router.end()
    return router.facts


def _leave_step(state: State, passed: DeadlinePassed, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """The step has failed, and its error arcs may handle that; what ran of it was stopped by the fact itself."""
    step = state.execution.steps.get(passed.step)
    if step is None or not is_running(step, passed.activation):
        return ()
    result = step.result or {}
    loops = OpenLoops(state.execution, plan)
    if not loops.is_open(passed.step):
        return route(state, plan, Left(step=passed.step, activation=passed.activation, result=result), cause)
    done = loops.done(passed.step, error=result["context"]["error"])
    left = Left(step=passed.step, activation=passed.activation, result=done.result or {})
    return route(state, plan, left, cause, done)


def _stop_waiting(state: State, passed: DeadlinePassed) -> tuple[Event, ...]:
    """The call goes on with the timeout as its outcome, and the child by itself."""
    command = state.commands.get(passed.command_id)
    if command is None or command.status is not CommandStatus.PARKED or command.parked is None or command.deadline:
        return ()
    resumed = CommandResumed(
        **command.of_command,
        call_id=command.parked.call_id,
        child_execution_id=command.parked.child_execution_id,
        status=TIMED_OUT,
    )
    return (resumed,)


def counts(state: State, command: Command) -> bool:
    """Whether an end of this command can lead to anything: its activation runs, or is about to."""
    if command.evaluation is not None:
        return command.status is not CommandStatus.STOPPED
    step = state.execution.steps.get(command.step)
    return step is not None and is_running(step, command.activation)
