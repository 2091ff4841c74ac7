"""Facts about a command: one attempt at one activation of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.nodes import OfCommand
from noetl_core.streams.events import CallPartial
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OfItem(OfCommand):
    """What a fact about a command says if the command runs one item of a loop."""

    loop_id: str | None = None
    loop_iteration_index: int | None = None


@event_type("command.issued", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandIssued(OfItem):
    """A worker may claim this attempt.

    `evaluation` is there for an internal command: what a worker evaluates for the planner, and for which step.
    """

    activation: int
    attempt: int
    pool: str = "default"
    cause_step: str = ""
    evaluation: Mapping[str, Any] | None = None
    parked: Mapping[str, Any] | None = None
    """Where the attempt before it was parked last: this one goes on from there."""
    stage_id: str = ""
    """The stage that it is about: one that its answer opens, or one whose step it leads on from."""
    streamed: Mapping[str, Any] | None = None
    """How far earlier attempts have told their chunks: this one tells what follows."""


@event_type("command.claimed", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandClaimed(OfItem):
    """One worker holds the attempt until its lease ends."""

    worker_id: str
    lease_seconds: float
    after: str | None = None
    worker_locator: str | None = None
    locality: Mapping[str, Any] | None = None
    """What the worker wants of placement: prefer_node, prefer_zone, max_distance."""
    source_locality: str | None = None
    """Where what led here was made, or where the worker says that its data are."""
    placement: Mapping[str, Any] | None = None
    """How far that is: distance, max_distance, within_max_distance."""


@event_type("command.started", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStarted(OfItem):
    """The worker that holds the attempt runs it."""

    worker_id: str


@event_type("command.heartbeat", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHeartbeat(OfCommand):
    """The worker is alive; its lease starts anew."""

    worker_id: str
    lease_seconds: float
    progress: Mapping[str, Any] | None = None
    """How far its tool is, if that is known and new: of Spark, stages and tasks."""


@event_type("call.done", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CallDone(OfItem):
    """The tool returned; its result is stored by reference."""

    result: Mapping[str, Any] | None
    logs: Mapping[str, Any] | None = None
    """Reference to what was printed meanwhile."""


@event_type("call.error", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed(OfItem):
    """The tool failed; what it said is in the result's context and stored by reference."""

    result: Mapping[str, Any] | None
    logs: Mapping[str, Any] | None = None
    """Reference to what was printed meanwhile."""


@event_type("command.completed", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCompleted(OfItem):
    """The attempt ended well."""

    worker_id: str


@event_type("command.failed", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailed(OfItem):
    """The attempt ended with an error of its tool."""

    worker_id: str


@event_type("command.abandoned", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAbandoned(OfItem):
    """The attempt's worker was silent for too long; what it may still deliver does not count."""

    previous_owner: str
    reclaimer: str
    prior_lease_until: str
    previous_attempt: int
    max_attempts: int


CommandEvent = (
    CommandIssued
    | CommandClaimed
    | CommandStarted
    | CommandHeartbeat
    | CallPartial
    | CallDone
    | CallFailed
    | CommandCompleted
    | CommandFailed
    | CommandAbandoned
)
