"""Facts about streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.nodes import OfCommand
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass


@event_type("call.partial", aggregate_type="command")
@dataclass(frozen=True, slots=True, kw_only=True)
class CallPartial(OfCommand):
    """A chunk of the rows of a running call is stored; `queued` if arcs take it."""

    task: str
    call: int
    chunk_index: int
    row_count: int
    has_more: bool
    payload_ref: PayloadRef
    activation: int = 1
    loop_iteration_index: int | None = None
    """The item of a loop that the call was made for."""
    queued: bool | None = None


@event_type("step.chunk")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRouted:
    """The turn of the first chunk that waits has come: the arcs that fired for it, or why they could not be tried."""

    step: str
    activation: int
    task: str
    call: int
    chunk_index: int
    fired: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
