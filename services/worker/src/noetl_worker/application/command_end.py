"""What the planner is told when a command or a frame is over, or waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from noetl_core.canonical import JsonObject
from noetl_core.children.state import ParkedCall
from noetl_core.errors import NoetlError
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import GrantedCommand, Variables

from noetl_worker.application.outcome import ErrorKind, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """What the planner is told when a command is over."""

    result: JsonObject
    variables: Variables = field(default_factory=Variables)
    logs: PayloadRef | None = None
    """What its calls printed, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPark:
    """What the planner is told when a command waits for a child."""

    call: ParkedCall
    timeout_seconds: float


def failed_result(error: NoetlError, *, retryable: bool | None = None) -> JsonObject:
    """The result of a command that could not even be run; there are no bytes to refer to."""
    outcome = Outcome.failed(
        kind=ErrorKind.UNKNOWN,
        code=error.code,
        message=error.message[:1000],
        retryable=error.retryable if retryable is None else retryable,
    )
    described = outcome.error.to_json() if outcome.error else {}
    return {"status": "error", "reference": None, "parent_ref": None, "context": {"error": described}}


def parent_ref_id(command: GrantedCommand) -> str | None:
    """The result that the one of a command is made from."""
    reference = (command.results.get(command.cause_step) or {}).get("reference") or {}
    ref_id = reference.get("ref_id")
    return ref_id if isinstance(ref_id, str) else None
