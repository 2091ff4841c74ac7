"""The rows of one frame, as a worker gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.payloads import PayloadRef
from noetl_core.stages.policy import FrameBounds
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRows:
    """Which rows of a stage a frame has: their values, or the stored collection in which they stand."""

    stage_id: str
    loop_id: str
    index: int
    slot: int
    start: int
    stop: int
    total: int
    bounds: FrameBounds
    values: tuple[Any, ...] | None = None
    collection: PayloadRef | None = None
    collection_at: int = 0
    """Index of the row with which the stored collection begins."""
    kind: str = "loop"
    """Of its stage; a frame of a reduce has a partition and no rows of its own."""
    sources: tuple[Mapping[str, Any], ...] = ()
    """Of a reduce: where the output is found that the partition is cut from."""
    claims: bool = False
    """Whether nobody has claimed its rows yet: its worker does, through the cursor of the loop."""
