"""What the planner is told when a command or a frame is over, or waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from noetl_core.children.state import ParkedCall
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import GrantedCommand, Variables

from noetl_worker.application.event_result import EventResult
from noetl_worker.application.persist_before_emit import failed_result

__all__ = ["CommandEnd", "CommandPark", "failed_result", "parent_ref_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """What the planner is told when a command is over."""

    result: EventResult
    """Of which only `persist_before_emit` can make one."""
    variables: Variables = field(default_factory=Variables)
    logs: PayloadRef | None = None
    """What its calls printed, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPark:
    """What the planner is told when a command waits for a child."""

    call: ParkedCall
    timeout_seconds: float


def parent_ref_id(command: GrantedCommand) -> str | None:
    """The result that the one of a command is made from."""
    reference = (command.results.get(command.cause_step) or {}).get("reference") or {}
    ref_id = reference.get("ref_id")
    return ref_id if isinstance(ref_id, str) else None
