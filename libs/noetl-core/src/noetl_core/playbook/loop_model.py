"""What a checked playbook says about work on many items: loops, frames, reduce stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from noetl_core.canonical import JsonValue
from noetl_core.playbook.task_model import Amount, Count, LoopMode


class Engine(StrEnum):
    """Where frames run: as tasks of a Spark cluster, or in the worker's process."""

    SPARK = "spark"
    INLINE = "inline"


class FrameProcess(StrEnum):
    """Whether the pipeline runs for each row or once for the frame."""

    ROW = "row"
    FRAME = "frame"


class FrameFailure(StrEnum):
    """What becomes of a frame that failed for good: it fails whole, or in halves down to the poison rows."""

    FAIL = "fail"
    BISECT = "bisect"


class RetryMode(StrEnum):
    """What is run again when a lease was lost."""

    WHOLE_FRAME = "whole_frame"


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePolicy:
    """The bounds of a frame and how it is retried; templates are rendered when the stage opens."""

    max_rows: Count = 1
    max_bytes: Count = 67_108_864
    max_seconds: Amount = 30.0
    lease_seconds: Amount = 120.0
    heartbeat_seconds: Amount = 30.0
    process: FrameProcess = FrameProcess.ROW
    row_concurrency: Count = 1
    retry_mode: RetryMode = RetryMode.WHOLE_FRAME
    max_attempts: Count = 3
    on_failure: FrameFailure = FrameFailure.FAIL


def is_late(heartbeat_seconds: float, *, lease_seconds: float) -> bool:
    """Whether a frame that is told of so seldom may be given up while it lives: no lease is used to its end."""
    return heartbeat_seconds > lease_seconds / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureBudget:
    """How many items may fail, as a number, as a share of all, or as both."""

    count: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Rows that slots claim from a table until there are none."""

    kind: str
    auth: JsonValue
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Many runs of a step's tasks in one activation: over a collection (`items`) or over what a cursor claims."""

    items: JsonValue = None
    """The list, or the template of one (`in`); nothing if there is a cursor."""
    cursor: Cursor | None = None
    iterator: str = "item"
    mode: LoopMode = LoopMode.SEQUENTIAL
    max_in_flight: Count = 1
    engine: Engine | None = None
    """As it is written; without it frames run on Spark where a worker keeps a session warm, else in the worker."""
    key: str | None = None
    """The template of an item's key; without it the key is the index."""
    max_item_retries: int = 2
    failure_budget: FailureBudget = field(default_factory=lambda: FailureBudget(count=0))
    frame: FramePolicy | None = None
    """Nothing if it is not written; `frame: {}` is all defaults, and asks for frames."""

    @property
    def tells_shards(self) -> bool:
        """Whether each item is told of by itself: a fan-out whose items are frames of their own (§7.2)."""
        return self.mode is LoopMode.FANOUT and self.frame is None

    @property
    def asks_for_frames(self) -> bool:
        """Whether frames are the unit of events whatever the number of items (§7.2)."""
        return self.frame is not None or self.engine is Engine.SPARK or self.cursor is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """A stage over everything that other steps have put out."""

    sources: tuple[str, ...]
    """The steps of `from`."""
    by: tuple[str, ...] = ()
    partitions: int = 1
    engine: Engine | None = None
    frame: FramePolicy | None = None
    max_in_flight: Count = 8
