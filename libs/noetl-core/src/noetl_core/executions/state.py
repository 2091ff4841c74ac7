"""What an execution looks like: its status, its steps, and the arrivals that wait at joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from noetl_core.children.state import AnsweredCall, ParentCall
from noetl_core.loops.state import Loop
from noetl_core.payloads import PayloadRef
from noetl_core.stages.state import Stage
from noetl_core.steering.state import HeldCause
from noetl_core.streams.state import Chunk, ChunkQueue
from noetl_core.values import dataclass


class ExecutionStatus(StrEnum):
    """Where an execution stands. The last three are final: a terminal state never reverts."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self in (ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED)


class StepStatus(StrEnum):
    """Where a step stands after its last activation."""

    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that was entered or skipped; `result` is that of its last finished activation."""

    status: StepStatus
    activation: int = 0
    cause_step: str = ""
    result: Mapping[str, Any] | None = None
    deadline: datetime | None = None
    """Until when the activation must have ended, by PostgreSQL's clock."""
    chunk: Chunk | None = None
    """The chunk that the activation was entered for."""
    made_at: str = ""
    """Where the worker is that made the result; empty if that was several, or nobody said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """An arc has fired into a step that has not been entered for it yet."""

    step: str
    cause_step: str
    chunk: Chunk | None = None
    """What an arc `on: call.partial` has fired for: one activation each."""
    times: int = field(default=1, compare=False)
    """How many of the kind wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One run of a playbook, as the log tells it."""

    execution_id: int
    tenant_id: str = ""
    organization_id: str = ""
    path: str = ""
    version: int = 0
    catalog_id: str = ""
    parent_execution_id: str = ""
    parent_call: ParentCall | None = None
    """The call that waits for its end."""
    depth: int = 0
    children: int = 0
    """How many executions were started under it; which ones, the log of heads knows."""
    answered: Mapping[str, AnsweredCall] = field(default_factory=lambda: MappingProxyType({}))
    """Children that ended before the calls that wait for them were parked, by call."""
    cascades: bool = False
    """It was cancelled, and its descendants have not all ended yet."""
    workload: PayloadRef | None = None
    variables: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What was set since the start, over the workload."""
    variable_refs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """References of variables that are too large for events."""
    status: ExecutionStatus = ExecutionStatus.RUNNING
    pauses: int = 0
    """How often it was paused."""
    held: tuple[HeldCause, ...] = ()
    """What has happened since it was paused, and has not been decided on."""
    released: tuple[HeldCause, ...] = ()
    """What was held until the last event, which resumed it."""
    redrive_of: str = ""
    """The execution that it takes up again."""
    inherited: PayloadRef | None = None
    """What it takes over from there, until it has begun."""
    redriven_rows: Mapping[str, Any] | None = None
    """Failed rows of that execution that it runs again, as `{step, count, reference}`."""
    steps: Mapping[str, Step] = field(default_factory=lambda: MappingProxyType({}))
    loops: Mapping[str, Loop] = field(default_factory=lambda: MappingProxyType({}))
    """The loop of the last activation of each step that has one."""
    stages: Mapping[str, Stage] = field(default_factory=lambda: MappingProxyType({}))
    """The stage of the last activation of each step whose loop runs in frames."""
    arrivals: tuple[Arrival, ...] = ()
    streams: Mapping[str, ChunkQueue] = field(default_factory=lambda: MappingProxyType({}))
    """Chunks of running calls that wait for their turn, by step."""
    failure: Mapping[str, Any] | None = None
    """The first failure that no arc handled; decides how the execution ends."""
    failed_chunk: Chunk | None = None
    """What the step that failed so was entered for."""
    deadline: datetime | None = None
    """Until when the execution must have ended, by PostgreSQL's clock."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: Mapping[str, Any] | None = None
    trace: str = ""
