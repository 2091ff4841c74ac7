"""Which deadlines are open: those of everything that is open and has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum

from noetl_core.canonical import encode, sha256_hex
from noetl_core.commands.state import Command
from noetl_core.executions.state import Execution, ExecutionStatus, StepStatus
from noetl_core.stages.leases import next_lease_end
from noetl_core.timestamps import format_time
from noetl_core.values import dataclass


class DeadlineOf(StrEnum):
    """What can have a deadline; the order is that of events which are due at the same time."""

    COMMAND = "command"
    EXECUTION = "execution"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Deadline:
    """Until when something must have ended; earlier ones come first."""

    at: datetime
    what: DeadlineOf
    step: str = ""
    activation: int = 0
    command_id: str = ""

    @property
    def key(self) -> str:
        """The idempotency key under which it passes once."""
        named = [self.what.value, self.step, self.activation, self.command_id]
        if self.what is DeadlineOf.COMMAND:  # which may wait more than once
            named.append(format_time(self.at))
        return f"deadline/{sha256_hex(encode(named))[:32]}"


def open_deadlines(execution: Execution, commands: Mapping[str, Command]) -> Iterator[Deadline]:
    """The deadlines that still mean something, in no order; at most one for each thing that is open."""
    if execution.status.is_final:
        return
    if execution.deadline is not None:
        yield Deadline(at=execution.deadline, what=DeadlineOf.EXECUTION)
    for name, step in execution.steps.items():
        if step.deadline is not None and step.status is StepStatus.ACTIVE and _is_waited_for(name, execution, commands):
            yield Deadline(at=step.deadline, what=DeadlineOf.STEP, step=name, activation=step.activation)
    for command in commands.values():
        if command.deadline is not None and command.is_open:
            yield Deadline(
                at=command.deadline,
                what=DeadlineOf.COMMAND,
                step=command.step,
                activation=command.activation,
                command_id=command.command_id,
            )


def _is_waited_for(step: str, execution: Execution, commands: Mapping[str, Command]) -> bool:
    """Deadlines count while an execution is paused, but not against a step that waits for nothing else."""
    if execution.status is not ExecutionStatus.PAUSED:
        return True
    if step in execution.stages and execution.stages[step].held:
        return True
    return any(command.is_open and command.step == step for command in commands.values())


def next_deadline(execution: Execution, commands: Mapping[str, Command]) -> datetime | None:
    """When somebody must look at this execution, if nothing happens before: frames may have silent workers then."""
    lease_end = next_lease_end(execution)
    leases = () if lease_end is None else (lease_end,)
    return min((*(deadline.at for deadline in open_deadlines(execution, commands)), *leases), default=None)
