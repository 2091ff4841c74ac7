"""How facts about children change their parent. Total and pure: it never refuses a fact."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import assert_never

from noetl_core.children.events import ChildEvent, ChildStarted, CommandParked, CommandResumed, ExecutionCascaded
from noetl_core.children.state import AnsweredCall, ParkedCall
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.executions.state import Execution, StepStatus
from noetl_core.recorded import Recorded
from noetl_core.values import replace

Commands = Mapping[str, Command]

MAX_SECONDS = 10 * 366 * 86_400.0
"""Whoever waits longer than ten years is in no hurry, and dates do not go on for ever."""


def evolve(
    execution: Execution, commands: Commands, event: ChildEvent, recorded: Recorded
) -> tuple[Execution, Commands]:
    """The execution and its commands after a fact about a child."""
    match event:
        case ChildStarted():
            return replace(execution, children=execution.children + 1), commands
        case CommandParked():
            return _park(execution, commands, event, recorded)
        case CommandResumed():
            return _resume(execution, commands, event, recorded)
        case ExecutionCascaded():
            return replace(execution, cascades=False), commands
        case _:
            assert_never(event)


def _park(
    execution: Execution, commands: Commands, event: CommandParked, recorded: Recorded
) -> tuple[Execution, Commands]:
    command = commands.get(event.command_id)
    if command is None:
        return execution, commands
    command = replace(command, aggregate_version=recorded.aggregate_version, stream_version=recorded.stream_version)
    if not command.is_open or event.payload_ref is None:
        return execution, {**commands, event.command_id: command}
    answered = execution.answered.get(event.call_id)
    parked = ParkedCall(
        call_id=event.call_id,
        child_execution_id=event.child_execution_id,
        pipeline=event.payload_ref,
        status=answered.status if answered else "",
    )
    command = replace(
        command,
        status=CommandStatus.RESUMED if answered else CommandStatus.PARKED,
        worker_id="",
        claimed_after="",
        lease_until=None,
        parked=parked,
        deadline=None if answered else _deadline(event, recorded),
    )
    if answered:
        left = {key: value for key, value in execution.answered.items() if key != event.call_id}
        execution = replace(execution, answered=left)
    return execution, {**commands, event.command_id: command}


def _deadline(event: CommandParked, recorded: Recorded) -> datetime | None:
    if event.timeout_seconds is None:
        return None
    return recorded.ingest_time + timedelta(seconds=min(event.timeout_seconds, MAX_SECONDS))


def _resume(
    execution: Execution, commands: Commands, event: CommandResumed, recorded: Recorded
) -> tuple[Execution, Commands]:
    for command_id, command in commands.items():
        if command.status is CommandStatus.PARKED and command.parked and command.parked.call_id == event.call_id:
            resumed = replace(
                command,
                status=CommandStatus.RESUMED,
                parked=replace(command.parked, status=event.status),
                deadline=None,
                stream_version=recorded.stream_version,
            )
            return execution, {**commands, command_id: resumed}
    if not _may_still_park(execution, commands, event):
        return execution, commands
    answer = AnsweredCall(step=event.step, status=event.status)
    return replace(execution, answered={**execution.answered, event.call_id: answer}), commands


def _may_still_park(execution: Execution, commands: Commands, event: CommandResumed) -> bool:
    """Whether the answer may come before its question: not after a call that was answered already."""
    step = execution.steps.get(event.step)
    if execution.status.is_final or step is None or step.status is not StepStatus.ACTIVE:
        return False
    return not any(one.parked and one.parked.call_id == event.call_id for one in commands.values() if one.is_open)
