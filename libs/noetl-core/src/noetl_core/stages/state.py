"""Where a stage stands. What has not begun is arithmetic and what has ended is counted: only the rest are records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from noetl_core.loops.intervals import Intervals
from noetl_core.payloads import PayloadRef
from noetl_core.stages.policy import FrameBounds
from noetl_core.values import dataclass

REMEMBERED: Final = 16
"""Ends of frames that are known by name: their workers may repeat a commit whose answer they never saw."""


class FrameOutcome(StrEnum):
    """What an attempt that gave nothing means for its rows."""

    RETRY = "retry"
    """They are dispatched again, all of them."""
    BISECT = "bisect"
    """They are dispatched again in two halves, so that those that fail stand alone in the end."""
    FINAL = "final"
    """They have failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame that a worker holds, or that waits to be dispatched again; `attempt` is the last one."""

    frame_id: str
    index: int
    start: int
    stop: int
    attempt: int
    slot: int = 0
    sequence: int = 0
    worker_id: str = ""
    """Who holds it; nobody while it waits."""
    worker_locator: str = ""
    """Where that worker is, if anybody said so."""
    source: str = ""
    """Where the worker is that had its rows last, of a frame that is not the first to have them."""
    lease_until: datetime | None = None
    dispatched_at: datetime | None = None
    aggregate_version: int = 0
    after: str = ""
    claim_id: str = ""
    """How its worker calls the claim that gave it the frame."""
    parent_frame_id: str = ""
    claimed: PayloadRef | None = None
    """Rows that were claimed through a cursor, in which its own stand; none until its worker has said so."""
    claimed_at: int = 0
    """Index of the first of them."""
    claimed_event_id: int = 0
    """The event by which its worker has it."""
    created_at: datetime | None = None
    """When it was first dispatched."""
    started_at: datetime | None = None
    """When the attempt was begun."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start

    @property
    def is_held(self) -> bool:
        """Whether a worker has it."""
        return bool(self.worker_id)

    @property
    def key(self) -> str:
        """Names the attempt."""
        return attempt_key(self.frame_id, self.attempt)

    def held_by(self, worker_id: str, attempt: int) -> bool:
        """Whether this worker's outcome of this attempt counts."""
        return self.is_held and (self.worker_id, self.attempt) == (worker_id, attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedFrame:
    """The end of an attempt, as far as somebody may still ask for it."""

    key: str
    worker_id: str
    ended_by: str
    stream_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The frames of one epoch, as the log tells them. Rows are given out in order, and end in any order."""

    stage_id: str
    step: str
    activation: int
    loop_id: str
    kind: str
    engine: str
    total: int
    max_in_flight: int
    bounds: FrameBounds
    pool: str = "default"
    next_row: int = 0
    """Every row below has been given out."""
    dispatched: int = 0
    """How many frames there have been; the next one has this index."""
    rest: Intervals = ()
    """Rows that frames have left to others, by first and last."""
    frames: Mapping[str, Frame] = field(default_factory=lambda: MappingProxyType({}))
    """Those in flight, and those that wait to be dispatched again."""
    sequences: tuple[int, ...] = ()
    """How many frames each slot has had."""
    ended: tuple[EndedFrame, ...] = ()
    is_cursor: bool = False
    """Whether frames claim their rows themselves; `total` is how many they have found."""
    drained: tuple[int, ...] = ()
    """Slots of a cursor that found no rows."""
    sources: tuple[Mapping[str, Any], ...] = ()
    """Of a reduce: where the output is found that its frames read."""
    parent_stage_id: str = ""
    """Of a reduce: the first stage whose output it reads."""
    status: str = ""
    """How it ended; empty while it runs."""
    opened_event_id: int = 0
    parent_event_id: int = 0
    """The event that it was opened for; 0 if the event that opened it does not say so."""
    opened_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames may still be dispatched or end."""
        return not self.status

    @property
    def held(self) -> list[Frame]:
        """Frames that workers have."""
        return [frame for frame in self.frames.values() if frame.is_held]

    @property
    def waiting(self) -> list[Frame]:
        """Frames to be dispatched again, the oldest first."""
        return sorted((frame for frame in self.frames.values() if not frame.is_held), key=lambda frame: frame.index)

    @property
    def frames_left(self) -> int:
        """How many frames could be dispatched now, were there slots enough."""
        if self.is_cursor:
            return len(self.waiting) + sum(slot not in self.drained for slot in self.free_slots())
        size = self.bounds.max_rows
        return (
            len(self.waiting)
            + sum(-(-(last + 1 - first) // size) for first, last in self.rest)
            + -(-(self.total - self.next_row) // size)
        )

    def free_slots(self) -> Iterator[int]:
        """Slots without a frame, the lowest first."""
        taken = {frame.slot for frame in self.frames.values() if frame.is_held}
        return (slot for slot in range(self.max_in_flight) if slot not in taken)

    def may_take(self, slot: int) -> bool:
        """Whether there is a frame for this very slot: one of a cursor that has found nothing looks no more."""
        if self.is_cursor and slot in self.drained:
            return bool(self.waiting)
        return self.frames_left > 0

    def sequence_of(self, slot: int) -> int:
        """Which frame of a slot would be its next."""
        return self.sequences[slot] if slot < len(self.sequences) else 0

    def find_ended(self, key: str) -> EndedFrame | None:
        """The end of an attempt, if it is remembered."""
        return next((one for one in self.ended if one.key == key), None)


def attempt_key(frame_id: str, attempt: int) -> str:
    """Names one attempt at a frame."""
    return f"{frame_id}/{attempt}"
