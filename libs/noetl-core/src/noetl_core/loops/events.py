"""Facts about a loop: its collection is fixed, its items begin, and it is over once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass


@event_type("loop.started")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStarted:
    """The collection of an activation is frozen: a small one stands here, any other is stored by reference."""

    loop_id: str
    step: str
    activation: int
    mode: str
    collection_size: int
    max_in_flight: int
    items: tuple[Any, ...] | None = None
    payload_ref: PayloadRef | None = None


@event_type("loop.item")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopItemStarted:
    """An item may run; its index stands under both names by which readers know it."""

    loop_id: str
    step: str
    iter_index: int
    loop_iteration_index: int


@event_type("loop.done", after_end=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDone:
    """The loop of an activation is over, whatever the reason; the results of its items are found by reference."""

    loop_id: str
    step: str
    activation: int
    collection_size: int
    status: str
    success: int = 0
    failed: int = 0
    result: Mapping[str, Any] | None = None


LoopEvent = LoopStarted | LoopItemStarted | LoopDone
