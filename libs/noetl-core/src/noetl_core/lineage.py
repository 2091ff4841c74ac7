"""Where a result came from: each one names the result before it, back to the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent
from noetl_core.nodes import step_of

RESULT_EVENTS = ("call.done", "call.error", "frame.committed", "loop.done")
"""The types of events that tell of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedResult:
    """A stored result as its event tells of it."""

    step: str
    stream_version: int
    event_id: int
    command_id: str
    status: str
    recorded_at: datetime
    reference: JsonObject
    parent_ref_id: str | None
    loop_id: str | None = None
    """The loop that it is the result of, or an item of."""

    @property
    def ref_id(self) -> str:
        """How later results name it."""
        return str(self.reference["ref_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A result, the one that it was made from, and so on; `truncated` if that went on for too long."""

    results: tuple[TracedResult, ...]
    truncated: bool = False


def follow(results: Sequence[TracedResult], *, step: str, at_version: int, limit: int) -> Trace:
    """The chain of a step's last result, given all of an execution in the order of their events.

    The same bytes may come from a step more than once: the last one before is meant. A loop was made from what its
    items were made from.
    """
    of_items = {result.loop_id: result.parent_ref_id for result in results if result.loop_id and result.parent_ref_id}
    chain: list[TracedResult] = []
    for result in reversed(results):
        if chain:
            wanted = chain[-1].parent_ref_id is not None and result.ref_id == chain[-1].parent_ref_id
        else:
            wanted = result.step == step and (not at_version or result.stream_version <= at_version)
        if wanted:
            chain.append(replace(result, parent_ref_id=result.parent_ref_id or of_items.get(result.loop_id or "")))
    return Trace(results=tuple(chain[:limit]), truncated=len(chain) > limit)


def result_of(event: StoredEvent) -> TracedResult | None:
    """The result that an event tells of, if it does and there are bytes."""
    envelope = event.envelope()
    result = envelope.result or {}
    reference = result.get("reference")
    if envelope.event_type not in RESULT_EVENTS or not isinstance(reference, dict) or "ref_id" not in reference:
        return None
    parent = result.get("parent_ref")
    return TracedResult(
        step=step_of(envelope.node_name, envelope.meta),
        stream_version=event.stream_version,
        event_id=envelope.event_id,
        command_id=envelope.command_id or "",
        status=str(result["status"]),
        recorded_at=event.ingest_time,
        reference=reference,
        parent_ref_id=str(parent["ref_id"]) if isinstance(parent, dict) and parent.get("ref_id") else None,
        loop_id=str(envelope.meta["loop_id"]) if envelope.meta.get("loop_id") else None,
    )
