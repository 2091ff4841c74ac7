"""How facts change a command. Total and pure: it never refuses a fact."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import assert_never

from noetl_core.children.state import ParkedCall
from noetl_core.commands.events import (
    CallDone,
    CallFailed,
    CommandAbandoned,
    CommandClaimed,
    CommandCompleted,
    CommandEvent,
    CommandFailed,
    CommandHeartbeat,
    CommandIssued,
    CommandStarted,
)
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.recorded import Recorded
from noetl_core.streams.events import CallPartial
from noetl_core.streams.state import Place
from noetl_core.values import replace


def forget_answers(commands: Mapping[str, Command], step: str) -> Mapping[str, Command]:
    """A step was decided on: what workers have evaluated for it has been used, and state need not keep it."""
    used = {
        command_id: replace(command, answer=None)
        for command_id, command in commands.items()
        if command.answer is not None and command.evaluation is not None and command.evaluation["step"] == step
    }
    return {**commands, **used} if used else commands


def evolve(command: Command | None, event: CommandEvent, recorded: Recorded) -> Command:
    """The command after a fact about it."""
    at = recorded.ingest_time
    if isinstance(event, CommandIssued):
        return Command(
            command_id=event.command_id,
            step=event.step,
            activation=event.activation,
            attempt=event.attempt,
            pool=event.pool,
            cause_step=event.cause_step,
            pipeline=bool(event.pipeline),
            streamed=Place.from_json(event.streamed),
            status=CommandStatus.ISSUED,
            issued_at=at,
            issued_version=recorded.stream_version,
            trace=recorded.envelope.trace,
            parked=ParkedCall.from_json(event.parked) if event.parked else None,
            aggregate_version=recorded.aggregate_version,
            stream_version=recorded.stream_version,
            evaluation=event.evaluation,
            loop_id=event.loop_id or "",
            loop_index=event.loop_iteration_index,
            stage_id=event.stage_id,
        )
    if command is None:  # A fact about a command whose issue was pruned away: only its identity is left.
        command = Command(
            command_id=event.command_id,
            step=event.step,
            activation=0,
            attempt=0,
            pool="",
            cause_step="",
            pipeline=bool(event.pipeline),
            status=CommandStatus.COMPLETED,
            issued_at=at,
            issued_version=0,
        )
    command = replace(command, aggregate_version=recorded.aggregate_version, stream_version=recorded.stream_version)
    if not command.is_open:  # The first end counts; nothing that comes later brings an attempt back.
        return command
    match event:
        case CommandClaimed():
            return replace(
                command,
                status=CommandStatus.CLAIMED,
                worker_id=event.worker_id,
                worker_locator=event.worker_locator or "",
                claimed_after=event.after or "",
                lease_until=at + timedelta(seconds=event.lease_seconds),
            )
        case CommandStarted():
            return replace(command, status=CommandStatus.STARTED)
        case CommandHeartbeat():
            return replace(command, lease_until=at + timedelta(seconds=event.lease_seconds))
        case CallPartial():
            return replace(command, streamed=Place(call=event.call, chunk=event.chunk_index + 1))
        case CallDone() | CallFailed():
            return command if command.evaluation is None else replace(command, answer=event.result)
        case CommandCompleted():
            return replace(command, status=CommandStatus.COMPLETED, lease_until=None, ended_at=at)
        case CommandFailed():
            return replace(command, status=CommandStatus.FAILED, lease_until=None, ended_at=at)
        case CommandAbandoned():
            return replace(command, status=CommandStatus.ABANDONED, lease_until=None, ended_at=at)
        case _:
            assert_never(event)
