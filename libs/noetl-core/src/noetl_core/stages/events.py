"""Facts about a stage and its frames. A frame is told in three of them if all goes well, a stage in two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass


@event_type("stage.opened")
@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpened:
    """The rows of an activation are fixed, and how they are cut into frames: what has not begun is arithmetic."""

    stage_id: str
    step: str
    activation: int
    loop_id: str
    kind: str
    mode: str
    collection_size: int
    max_in_flight: int
    policy: Mapping[str, Any]
    engine: str
    pool: str = "default"
    items: tuple[Any, ...] | None = None
    payload_ref: PayloadRef | None = None
    sources: tuple[Mapping[str, Any], ...] | None = None
    """Of a reduce: the steps whose output it reads, and where each is found."""
    parent_stage_id: str | None = None
    """Of a reduce: the first stage whose output it reads."""


@event_type("stage.closed", after_end=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class StageClosed:
    """No frame of the stage counts any more; what its rows gave is told by `loop.done`."""

    stage_id: str
    step: str
    activation: int
    loop_id: str
    kind: str
    status: str
    frame_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFrame:
    """What every fact about an attempt at a frame says."""

    frame_id: str
    stage_id: str
    step: str
    loop_id: str
    attempt: int
    slot: int = 0


@event_type("frame.dispatched", aggregate_type="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameDispatched(OfFrame):
    """A slot of the stage has its next frame: the rows from `start` to before `stop`, held by one worker."""

    frame_index: int
    start: int
    stop: int
    sequence: int
    worker_id: str
    lease_seconds: float
    rows_at: int | None = None
    """Of a frame whose rows were claimed before: index of the first row of the payload in which they stand."""
    payload_ref: PayloadRef | None = None
    after: str | None = None
    """The attempt with whose commit this one was handed to the same worker."""
    parent_frame_id: str | None = None
    """The frame that left these rows to others."""
    claim_id: str | None = None
    """How the worker calls the claim that gave it the frame, if it may repeat it."""
    worker_locator: str | None = None
    locality: Mapping[str, Any] | None = None
    """What the worker wants of placement: prefer_node, prefer_zone, max_distance."""
    source_locality: str | None = None
    """Where the rows were last, or where the worker says that they are."""
    placement: Mapping[str, Any] | None = None
    """How far that is: distance, max_distance, within_max_distance."""


@event_type("frame.started", aggregate_type="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStarted(OfFrame):
    """The worker that holds the attempt runs it; one that has claimed the rows itself has stored them before."""

    worker_id: str
    start: int | None = None
    stop: int | None = None
    payload_ref: PayloadRef | None = None


@event_type("frame.heartbeat", aggregate_type="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeartbeat(OfFrame):
    """The worker is alive; its lease starts anew."""

    worker_id: str
    lease_seconds: float
    progress: Mapping[str, Any] | None = None
    """How far its tool is, if that is known and new: of Spark, stages and tasks."""


@event_type("frame.committed", aggregate_type="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCommitted(OfFrame):
    """Rows up to before `stop` have their outcomes, all of them in one payload; what is left goes to another frame."""

    worker_id: str
    frame_index: int
    start: int
    stop: int
    success: int
    failed: int
    breaks: int = 0
    first_error: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    logs: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    """How rows ended, and what tasks, rendering and tools took: `{rows, tasks}`."""


@event_type("frame.failed", aggregate_type="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFailed(OfFrame):
    """The attempt failed as a whole; `outcome` says whether the rows are tried again or have failed with it."""

    worker_id: str
    frame_index: int
    start: int
    stop: int
    outcome: str
    result: Mapping[str, Any] | None = None
    logs: Mapping[str, Any] | None = None


@event_type("frame.abandoned", aggregate_type="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameAbandoned(OfFrame):
    """The attempt's worker was silent for too long; what it may still deliver does not count."""

    frame_index: int
    start: int
    stop: int
    outcome: str
    previous_owner: str
    reclaimer: str
    prior_lease_until: str
    previous_attempt: int
    max_attempts: int
    retry_mode: str = "whole_frame"
    row_split_retry: bool = False


FrameEnd = FrameCommitted | FrameFailed | FrameAbandoned
FrameEvent = FrameDispatched | FrameStarted | FrameHeartbeat | FrameEnd
StageEvent = StageOpened | StageClosed | FrameEvent
