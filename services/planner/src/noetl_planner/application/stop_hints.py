"""Tells workers to stop what a turn has made worthless; who does not hear it learns it from the next heartbeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from noetl_contracts.subjects import CANCEL_SUBJECT, STOP_SUBJECT
from noetl_core.append import Hint
from noetl_core.canonical import JsonObject, encode
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.envelope import Draft
from noetl_core.fold import State

from noetl_planner.application.frame_hints import FREES

ENDS: Final = frozenset({"step.exit", "deadline.passed"})
"""What stops the commands of an activation that are left."""


def stop_hints(before: State, after: State, drafts: Sequence[Draft]) -> Iterator[Hint]:
    """One hint for an execution that ended while calls ran, else one for each activation that did."""
    is_over = after.execution.status.is_final
    if not is_over and not any(draft.event_type in ENDS for draft in drafts):
        return
    stopped = {
        (command.step, command.activation)
        for command_id, command in before.commands.items()
        if _is_running(command) and _is_left(after.commands[command_id], is_over)
    }
    delivered = {draft.frame_id for draft in drafts if draft.event_type in FREES}
    stopped |= {
        (stage.step, stage.activation)
        for name, stage in before.execution.stages.items()
        if any(frame.frame_id not in delivered for frame in stage.held)
        and (is_over or not after.execution.stages[name].is_open)
    }
    if is_over:
        if stopped:
            yield _hint(CANCEL_SUBJECT, after, {})
        return
    for step, activation in sorted(stopped):
        yield _hint(STOP_SUBJECT, after, {"step": step, "activation": activation})


def _is_left(command: Command, is_over: bool) -> bool:
    """Whether its worker runs it still and for nothing: it was stopped, or the execution ended around it."""
    return command.status is CommandStatus.STOPPED or (is_over and command.is_open)


def _is_running(command: Command) -> bool:
    return command.is_open and bool(command.worker_id)


def _hint(subject: str, state: State, what: JsonObject) -> Hint:
    execution_id = state.execution.execution_id
    return Hint(subject=subject, body=encode({"execution_id": str(execution_id), **what}), execution_id=execution_id)
