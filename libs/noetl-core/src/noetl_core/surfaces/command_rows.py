"""Rows of commands: one per attempt. What comes after its end changes nothing, whatever it says."""

from __future__ import annotations

from collections.abc import Iterator

from noetl_core.canonical import JsonObject
from noetl_core.children.events import CommandParked
from noetl_core.commands.events import CommandEvent, CommandIssued
from noetl_core.commands.state import Command
from noetl_core.execution_view import silent_after
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.recorded import Recorded
from noetl_core.surfaces.shapes import without_absent
from noetl_core.timestamps import format_time


def changed_commands(before: State, after: State, recorded: Recorded) -> Iterator[JsonObject]:
    """Rows that differ after an event.

    An attempt that has ended is no longer looked at, because state may have forgotten it, and must not matter. All
    that are open change when somebody begins or ceases to wait for them.
    """
    content = recorded.content
    turned = _waits(before) is not _waits(after)
    if before.commands is after.commands and not turned:
        return
    if isinstance(content, CommandEvent | CommandParked) and not turned:
        touched = [content.command_id]
    else:
        touched = list(after.commands)
    for command_id in touched:
        old, new = before.commands.get(command_id), after.commands.get(command_id)
        if new is None or (old is None and not isinstance(content, CommandIssued)) or (old and not old.is_open):
            continue
        if new is not old or turned:
            yield command_row(after, new, recorded)


def command_row(state: State, command: Command, recorded: Recorded) -> JsonObject:
    """An attempt as it is after an event."""
    lease_until = silent_after(state, command)
    return without_absent(
        {
            "command_id": command.command_id,
            "execution_id": str(state.execution.execution_id),
            "step": command.step,
            "activation": command.activation,
            "attempt": command.attempt,
            "pool": command.pool,
            "cause_step": command.cause_step,
            "status": command.status.value,
            "worker_id": command.worker_id,
            "lease_until": format_time(lease_until) if lease_until else None,
            "deadline": format_time(command.deadline) if command.deadline else None,
            "internal": command.evaluation is not None,
            "loop_id": command.loop_id,
            "loop_iteration_index": command.loop_index,
            "stage_id": command.stage_id,
            "child_execution_id": command.parked.child_execution_id if command.parked else None,
            "aggregate_version": command.aggregate_version,
            "issued_at": format_time(command.issued_at),
            "issued_version": command.issued_version,
            "ended_at": format_time(command.ended_at) if command.ended_at else None,
            "terminal_event_id": None if command.is_open else str(recorded.envelope.event_id),
            "trace": command.trace,
            "stream_version": command.stream_version,
        }
    )


def _waits(state: State) -> bool:
    return state.execution.status is ExecutionStatus.RUNNING
