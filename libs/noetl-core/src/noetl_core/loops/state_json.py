"""A loop as JSON and back, without loss, and how far it has come as queries show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.canonical import JsonObject
from noetl_core.loops.state import Loop
from noetl_core.payloads import PayloadRef


def loop_object(loop: Loop) -> JsonObject:
    """The JSON object of a loop; what is absent or empty is left out."""
    fields: dict[str, Any] = {
        "loop_id": loop.loop_id,
        "activation": loop.activation,
        "mode": loop.mode,
        "total": loop.total,
        "max_in_flight": loop.max_in_flight,
        "started_version": loop.started_version,
        "items": list(loop.items),
        "collection": loop.collection.to_json() if loop.collection else None,
        "begun": loop.begun,
        "finished": [list(interval) for interval in loop.finished],
        "success": loop.success,
        "failed": loop.failed,
        "first_error": dict(loop.first_error) if loop.first_error is not None else None,
        "before": {name: dict(value) for name, value in loop.before.items()},
        "awaits": loop.awaits,
        "breaks": loop.breaks,
        "frame_count": loop.frame_count,
        "stage_id": loop.stage_id,
        "outcome": dict(loop.outcome) if loop.outcome is not None else None,
        "status": loop.status,
    }
    return {key: value for key, value in fields.items() if value}


def read_loop(fields: Mapping[str, Any]) -> Loop:
    """The loop that was written."""
    return Loop(
        loop_id=fields["loop_id"],
        activation=fields.get("activation", 0),
        mode=fields.get("mode", ""),
        total=fields.get("total", 0),
        max_in_flight=fields.get("max_in_flight", 0),
        started_version=fields.get("started_version", 0),
        items=tuple(fields.get("items", ())),
        collection=PayloadRef.from_json(fields["collection"]) if "collection" in fields else None,
        begun=fields.get("begun", 0),
        finished=tuple((first, last) for first, last in fields.get("finished", ())),
        success=fields.get("success", 0),
        failed=fields.get("failed", 0),
        first_error=fields.get("first_error"),
        before=fields.get("before", {}),
        awaits=fields.get("awaits", 0),
        breaks=fields.get("breaks", 0),
        frame_count=fields.get("frame_count", 0),
        stage_id=fields.get("stage_id", ""),
        outcome=fields.get("outcome"),
        status=fields.get("status", ""),
    )


def loop_progress(loop: Loop) -> JsonObject:
    """How far a loop has come; every key is always there."""
    return {
        "loop_id": loop.loop_id,
        "mode": loop.mode,
        "total": loop.total,
        "done": loop.ended,
        "success": loop.success,
        "failed": loop.failed,
        "running": loop.running,
        "status": loop.status or "running",
    }
