"""Facts about an execution and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass


@event_type("playbook.initialized")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookInitialized:
    """An execution exists, pinned to one version of a playbook; its variables are stored by reference."""

    path: str
    version: int
    catalog_id: str
    payload_ref: PayloadRef | None
    depth: int | None = None
    """How many executions stand above it."""
    parent_call: Mapping[str, Any] | None = None
    """The call of the parent that waits for its end."""
    redrive_of: str | None = None
    """The execution of which this one is a redrive; it begins at `entry_step` with what that one had."""
    entry_step: str | None = None
    entry_cause: str | None = None
    """Which step had led there."""
    entry_chunk: Mapping[str, Any] | None = None
    """The chunk that the step had been entered for, by reference."""
    entry_rows: Mapping[str, Any] | None = None
    """Rows that failed in that execution, as `{count, reference}`: the step runs for these alone, and leads nowhere."""
    inherited: Mapping[str, Any] | None = None
    """Reference of the results and variables that it takes over."""


@event_type("workflow.initialized")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInitialized:
    """The planner has taken up the execution; its timeout, if it has one, counts from here."""

    entry_step: str
    timeout_seconds: float | None = None
    cause_step: str | None = None
    chunk: Mapping[str, Any] | None = None


@event_type("step.enter")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntered:
    """An activation of a step begins; `cause_step` is the step whose arc led here.

    `consumes` names the causes of the arrivals that this activation answers: all of them at a join, one for a
    back edge. `timeout_seconds` is what the whole activation has, from here on.
    """

    step: str
    activation: int
    cause_step: str = ""
    consumes: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    chunk: Mapping[str, Any] | None = None
    """The chunk that it takes, if an arc `on: call.partial` led here."""


@event_type("step.exit")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepExited:
    """An activation is over and routing has spoken: the arcs that fired, or why the step failed."""

    step: str
    activation: int
    status: str
    fired: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    handled: bool = True
    repeated: tuple[str, ...] | None = None
    """Those of the targets that wait for an earlier firing of the same arc; they run once for all of them."""
    result: Mapping[str, Any] | None = None
    """Of an activation that failed before anything ran: its outcome, in the place of the one before."""
    amends: bool | None = None
    """Whether the call had gone well, so that the error is added to its result."""


@event_type("step.skipped")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped:
    """The step can no longer be reached in this execution, or was not admitted.

    `consumes` names the causes of the arrivals that a denial answers; without it all that wait are answered. `chunk`
    is what one of them was for.
    """

    step: str
    consumes: tuple[str, ...] | None = None
    chunk: Mapping[str, Any] | None = None


@event_type("ctx.updated")
@dataclass(frozen=True, slots=True, kw_only=True)
class CtxUpdated:
    """Variables of the execution changed, each to a whole new value; large ones are stored by reference."""

    step: str
    values: Mapping[str, Any]
    refs: Mapping[str, Any] | None = None
    loop_id: str | None = None
    """The loop whose item has changed them."""


@event_type("workflow.completed")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCompleted:
    """Nothing is left to run, and no failure is unhandled."""


@event_type("workflow.failed")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFailed:
    """Nothing is left to run, and a failure is unhandled."""

    error: Mapping[str, Any]


@event_type("playbook.completed", terminal=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookCompleted:
    """The execution ended well; or somebody has said so, and is named."""

    finalized_by: str | None = None
    reason: str | None = None


@event_type("playbook.failed", terminal=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookFailed:
    """The execution ended badly; or somebody has said so, and is named."""

    error: Mapping[str, Any]
    finalized_by: str | None = None
    reason: str | None = None


@event_type("execution.cancelled", terminal=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionCancelled:
    """Somebody ended the execution."""

    reason: str
    cancelled_by: str
    cascade: bool | None = None
    """Whether its descendants end with it; None for one that itself ended with an ancestor, where all are seen to."""


@event_type("execution.retired", after_end=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRetired:
    """The history of an ended execution was moved out of the hot log."""

    manifest: str


ExecutionEvent = (
    PlaybookInitialized
    | WorkflowInitialized
    | StepEntered
    | StepExited
    | StepSkipped
    | CtxUpdated
    | WorkflowCompleted
    | WorkflowFailed
    | PlaybookCompleted
    | PlaybookFailed
    | ExecutionCancelled
    | ExecutionRetired
)
