"""Who may have a command, and whose result counts."""

from __future__ import annotations

from noetl_core.commands.state import Command, CommandStatus
from noetl_core.errors import AlreadyTerminal, LeaseLost
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.ports.commands import Worker


def claimable(state: State) -> list[Command]:
    """Commands that nobody has claimed, and that may be."""
    if state.execution.status is not ExecutionStatus.RUNNING:
        return []
    return [command for command in state.commands.values() if command.is_claimable]


def claim_refusal(state: State, command: Command | None, worker: Worker) -> str:
    """Why this worker may not have the command, as a stable code; empty if it may."""
    if state.execution.status.is_final:
        return AlreadyTerminal.code
    if command is None:
        return "command.not_found"
    if not command.is_open:
        return "command.closed"
    if command.status is CommandStatus.PARKED:
        return "command.parked"
    if command.is_claimable and state.execution.status is ExecutionStatus.PAUSED:
        return "execution.paused"
    if not command.is_claimable and command.worker_id != worker.worker_id:
        return "command.held"
    return ""


def was_closed_by(command: Command, worker: Worker) -> bool:
    """Whether this worker has delivered the command's result before."""
    delivered = command.status in (CommandStatus.COMPLETED, CommandStatus.FAILED)
    return delivered and command.worker_id == worker.worker_id


def open_command(state: State, command_id: str, worker: Worker) -> Command:
    """The command that this worker holds; raises `LeaseLost` if it does not."""
    if state.execution.status.is_final:
        raise AlreadyTerminal(str(state.execution.execution_id))
    command = state.commands.get(command_id)
    if command is None or not command.held_by(worker.worker_id):
        holder = command.worker_id if command and command.is_open else None
        raise LeaseLost(command_id=command_id, worker=worker.worker_id, holder=holder)
    return command


def holders(state: State) -> dict[str, str]:
    """Who holds which command: worker ids by command id."""
    if state.execution.status.is_final:
        return {}
    open_ones = (command for command in state.commands.values() if command.is_open and command.worker_id)
    return {command.command_id: command.worker_id for command in open_ones}
