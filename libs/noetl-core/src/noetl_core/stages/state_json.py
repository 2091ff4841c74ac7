"""A stage as JSON and back, without loss."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from noetl_core.canonical import JsonObject
from noetl_core.payloads import PayloadRef
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.state import EndedFrame, Frame, Stage
from noetl_core.timestamps import format_time, parse_time


def stage_object(stage: Stage) -> JsonObject:
    """The JSON object of a stage; what is absent or empty is left out."""
    fields: dict[str, Any] = {
        "stage_id": stage.stage_id,
        "activation": stage.activation,
        "loop_id": stage.loop_id,
        "kind": stage.kind,
        "engine": stage.engine,
        "total": stage.total,
        "max_in_flight": stage.max_in_flight,
        "policy": stage.bounds.to_json(),
        "pool": stage.pool,
        "next_row": stage.next_row,
        "dispatched": stage.dispatched,
        "rest": [list(one) for one in stage.rest],
        "frames": {frame_id: _frame_object(frame) for frame_id, frame in stage.frames.items()},
        "sequences": list(stage.sequences),
        "ended": [[one.key, one.worker_id, one.ended_by, one.stream_version] for one in stage.ended],
        "is_cursor": stage.is_cursor,
        "drained": list(stage.drained),
        "sources": [dict(one) for one in stage.sources],
        "parent_stage_id": stage.parent_stage_id,
        "status": stage.status,
        "opened_event_id": str(stage.opened_event_id) if stage.opened_event_id else None,
        "parent_event_id": str(stage.parent_event_id) if stage.parent_event_id else None,
        "opened_at": _text(stage.opened_at),
    }
    return {key: value for key, value in fields.items() if value}


def read_stage(step: str, fields: Mapping[str, Any]) -> Stage:
    """The stage that was written."""
    return Stage(
        stage_id=fields["stage_id"],
        step=step,
        activation=fields.get("activation", 0),
        loop_id=fields.get("loop_id", ""),
        kind=fields.get("kind", ""),
        engine=fields.get("engine", ""),
        total=fields.get("total", 0),
        max_in_flight=fields.get("max_in_flight", 0),
        bounds=FrameBounds.from_json(fields["policy"]),
        pool=fields.get("pool", ""),
        next_row=fields.get("next_row", 0),
        dispatched=fields.get("dispatched", 0),
        rest=tuple((first, last) for first, last in fields.get("rest", ())),
        frames={frame_id: _frame(frame_id, one) for frame_id, one in fields.get("frames", {}).items()},
        sequences=tuple(fields.get("sequences", ())),
        ended=tuple(
            EndedFrame(key=key, worker_id=worker_id, ended_by=ended_by, stream_version=version)
            for key, worker_id, ended_by, version in fields.get("ended", ())
        ),
        is_cursor=fields.get("is_cursor", False),
        drained=tuple(fields.get("drained", ())),
        sources=tuple(fields.get("sources", ())),
        parent_stage_id=fields.get("parent_stage_id", ""),
        status=fields.get("status", ""),
        opened_event_id=int(fields.get("opened_event_id", 0)),
        parent_event_id=int(fields.get("parent_event_id", 0)),
        opened_at=_time(fields.get("opened_at")),
    )


def _frame_object(frame: Frame) -> JsonObject:
    fields: dict[str, Any] = {
        "index": frame.index,
        "start": frame.start,
        "stop": frame.stop,
        "attempt": frame.attempt,
        "slot": frame.slot,
        "sequence": frame.sequence,
        "worker_id": frame.worker_id,
        "worker_locator": frame.worker_locator,
        "source": frame.source,
        "lease_until": _text(frame.lease_until),
        "dispatched_at": _text(frame.dispatched_at),
        "aggregate_version": frame.aggregate_version,
        "after": frame.after,
        "claim_id": frame.claim_id,
        "parent_frame_id": frame.parent_frame_id,
        "claimed": frame.claimed.to_json() if frame.claimed else None,
        "claimed_at": frame.claimed_at,
        "claimed_event_id": str(frame.claimed_event_id) if frame.claimed_event_id else None,
        "created_at": _text(frame.created_at),
        "started_at": _text(frame.started_at),
    }
    return {key: value for key, value in fields.items() if value}


def _frame(frame_id: str, fields: Mapping[str, Any]) -> Frame:
    return Frame(
        frame_id=frame_id,
        index=fields.get("index", 0),
        start=fields.get("start", 0),
        stop=fields.get("stop", 0),
        attempt=fields.get("attempt", 0),
        slot=fields.get("slot", 0),
        sequence=fields.get("sequence", 0),
        worker_id=fields.get("worker_id", ""),
        worker_locator=fields.get("worker_locator", ""),
        source=fields.get("source", ""),
        lease_until=_time(fields.get("lease_until")),
        dispatched_at=_time(fields.get("dispatched_at")),
        aggregate_version=fields.get("aggregate_version", 0),
        after=fields.get("after", ""),
        claim_id=fields.get("claim_id", ""),
        parent_frame_id=fields.get("parent_frame_id", ""),
        claimed=PayloadRef.from_json(fields["claimed"]) if "claimed" in fields else None,
        claimed_at=fields.get("claimed_at", 0),
        claimed_event_id=int(fields.get("claimed_event_id", 0)),
        created_at=_time(fields.get("created_at")),
        started_at=_time(fields.get("started_at")),
    )


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)
