"""Facts about children of an execution, told in the stream of the parent."""

from __future__ import annotations

from noetl_core.catalog import event_type
from noetl_core.nodes import OfCommand
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass


@event_type("child.started")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted:
    """A child exists: this is in the same append as its first event, so neither is ever seen without the other.

    Step and command are empty when somebody outside started it under this parent.
    """

    child_execution_id: str
    path: str
    step: str = ""
    command_id: str = ""
    call_id: str = ""
    waits: bool = False


@event_type("command.parked", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandParked(OfCommand):
    """The attempt waits for a child and holds no worker; where its pipeline stands is stored by reference."""

    worker_id: str
    call_id: str
    child_execution_id: str
    payload_ref: PayloadRef | None
    timeout_seconds: float | None = None


@event_type("command.resumed")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResumed(OfCommand):
    """What a call waits for has come: the child ended, in the same append, or the call's time is up.

    It names the call, not an attempt: the one that started the child may have lost its worker before it was parked.
    """

    call_id: str
    child_execution_id: str
    status: str


@event_type("execution.cascaded", after_end=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionCascaded:
    """Every descendant of a cancelled execution has ended: nobody has to look after them any more."""


ChildEvent = ChildStarted | CommandParked | CommandResumed | ExecutionCascaded
