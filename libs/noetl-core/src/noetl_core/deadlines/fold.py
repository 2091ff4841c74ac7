"""How deadlines come and go with the facts that open and end things. Total and pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import DeadlineOf
from noetl_core.executions.events import ExecutionEvent, StepEntered, WorkflowInitialized
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.recorded import Recorded
from noetl_core.timestamps import format_time
from noetl_core.values import replace

STEP_TIMEOUT = "step.timeout"


def open_deadline(execution: Execution, event: ExecutionEvent, *, opened_at: datetime) -> Execution:
    """The execution with the deadline that an event sets, if it sets one."""
    match event:
        case WorkflowInitialized(timeout_seconds=float() | int() as seconds):
            return replace(execution, deadline=opened_at + timedelta(seconds=seconds))
        case StepEntered(timeout_seconds=float() | int() as seconds):
            step = replace(execution.steps[event.step], deadline=opened_at + timedelta(seconds=seconds))
            return _with_step(execution, event.step, step)
        case _:
            return execution


def pass_deadline(
    execution: Execution, commands: Mapping[str, Command], event: DeadlinePassed, recorded: Recorded
) -> tuple[Execution, Mapping[str, Command]]:
    """A deadline passes once; that of a step is its outcome, unless the activation has ended before.

    What runs of the step is stopped here and not by its end, which may have to wait for an evaluation.
    """
    match event.what:
        case DeadlineOf.EXECUTION:
            return replace(execution, deadline=None), commands
        case DeadlineOf.STEP:
            step = execution.steps.get(event.step)
            if step is None or not is_running(step, event.activation):
                return execution, commands
            late = replace(step, deadline=None, result=timeout_result(event.deadline))
            stopped = stop_left_open(commands, recorded, step=event.step, activation=event.activation)
            return _with_step(execution, event.step, late), stopped
        case DeadlineOf.COMMAND if (command := commands.get(event.command_id)) is not None:
            if command.deadline is None or format_time(command.deadline) != event.deadline:
                return execution, commands  # of a wait that is over
            return execution, {**commands, event.command_id: replace(command, deadline=None)}
        case _:
            return execution, commands


def is_running(step: Step, activation: int) -> bool:
    """Whether this activation of a step has not ended."""
    return step.status is StepStatus.ACTIVE and step.activation == activation


def timeout_result(deadline: str) -> dict[str, Any]:
    """The outcome of an activation that took too long; there are no bytes to refer to."""
    error = {
        "kind": "timeout",
        "code": STEP_TIMEOUT,
        "retryable": False,
        "message": f"the step had not ended by {deadline}",
    }
    return {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}


def stop_left_open(
    commands: Mapping[str, Command], recorded: Recorded, *, step: str, activation: int
) -> Mapping[str, Command]:
    """An activation that is over waits for nobody: what is still open of it is stopped, and cannot end any more."""
    left = {
        command_id: replace(
            command,
            status=CommandStatus.STOPPED,
            lease_until=None,
            deadline=None,
            ended_at=recorded.ingest_time,
            stream_version=recorded.stream_version,
        )
        for command_id, command in commands.items()
        if command.is_open and (_step_of(command), command.activation) == (step, activation)
    }
    return {**commands, **left} if left else commands


def _step_of(command: Command) -> str:
    return command.step if command.evaluation is None else str(command.evaluation["step"])


def _with_step(execution: Execution, name: str, step: Step) -> Execution:
    return replace(execution, steps={**execution.steps, name: step})
