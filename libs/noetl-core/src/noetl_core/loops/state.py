"""Where the loop of a step's last activation stands; its size does not depend on how many items have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from noetl_core.loops.intervals import Intervals
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass

LOOP_REFERENCE: Final = "loop"
"""Type of a reference whose value is put together from the outcomes of a loop's items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One epoch, as the log tells it. Items begin in the order of their indices and end in any order."""

    loop_id: str
    activation: int
    mode: str
    total: int
    max_in_flight: int = 1
    started_version: int = 0
    """Where its first event stands in the log; 0 while that has not been written."""
    items: tuple[Any, ...] = ()
    """The collection, if it is small."""
    collection: PayloadRef | None = None
    """The collection, if it is not."""
    begun: int = 0
    """Every index below has been given out."""
    finished: Intervals = ()
    success: int = 0
    failed: int = 0
    first_error: Mapping[str, Any] | None = None
    """Of the item whose failure came first."""
    awaits: int = 0
    """Slots of a cursor that may still find rows: until there are none, nobody knows how many there will be."""
    breaks: int = 0
    """Rows of frames that ended well by `break`."""
    frame_count: int = 0
    """Frames that have brought rows to an outcome."""
    stage_id: str = ""
    """The stage that runs it in frames, if one does: then its items are rows."""
    outcome: Mapping[str, Any] | None = None
    """Of a reduce that has but one frame: its result, which is that of the step."""
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Variables that items of a parallel loop have changed, as they were: the other items see those."""
    status: str = ""
    """How it ended; empty while it runs."""

    @property
    def is_open(self) -> bool:
        """Whether items may still begin or end."""
        return not self.status

    @property
    def ended(self) -> int:
        """How many items have an outcome."""
        return self.success + self.failed

    @property
    def running(self) -> int:
        """How many items have begun and have no outcome yet."""
        return self.begun - self.ended if self.is_open else 0
