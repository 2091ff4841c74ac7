"""Frames, their claims and their ends as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.frame.v1 import frame_pb2 as pb
from noetl_core.canonical import decode, encode
from noetl_core.errors import InvalidInput
from noetl_core.ids import execution_of
from noetl_core.ports.frames import (
    CommittedRows,
    FrameBeats,
    FrameClaim,
    FrameCommit,
    FrameKey,
    GrantedFrame,
    StageSlot,
)
from noetl_core.stages.policy import MAX_SECONDS, FrameBounds
from noetl_core.stages.rows import FrameRows

from noetl_contracts.mapping import commands
from noetl_contracts.mapping.events import json_object, payload_ref, payload_ref_message


def slot_message(slot: StageSlot) -> pb.StageSlot:
    """A slot as a message."""
    return pb.StageSlot(
        stage_id=slot.stage_id,
        slot=slot.slot,
        lease_seconds=slot.lease_seconds,
        max_rows=slot.max_rows,
        claim_id=slot.claim_id,
    )


def slot(message: pb.StageSlot) -> StageSlot:
    """A slot."""
    execution_id = execution_of(message.stage_id, what="stage_id")
    return StageSlot(
        execution_id=execution_id,
        stage_id=message.stage_id,
        slot=max(message.slot, -1),
        lease_seconds=lease_of(message.lease_seconds),
        max_rows=max(message.max_rows, 0),
        claim_id=message.claim_id,
    )


def lease_of(seconds: float) -> float:
    """How long a worker wants a frame, if it says so; raises `InvalidInput`."""
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(f"'lease_seconds' is above 0 and up to {MAX_SECONDS:g}, not {seconds:g}")
    return seconds


def key_message(key: FrameKey) -> pb.FrameKey:
    """The name of an attempt as a message."""
    return pb.FrameKey(frame_id=key.frame_id, attempt=key.attempt)


def key(message: pb.FrameKey) -> FrameKey:
    """The name of an attempt."""
    execution_id = execution_of(message.frame_id, what="frame_id")
    return FrameKey(execution_id=execution_id, frame_id=message.frame_id, attempt=message.attempt)


def rows_message(rows: FrameRows) -> pb.FrameRows:
    """The rows of a frame as a message."""
    return pb.FrameRows(
        stage_id=rows.stage_id,
        loop_id=rows.loop_id,
        index=rows.index,
        slot=rows.slot,
        start=rows.start,
        stop=rows.stop,
        total=rows.total,
        policy_json=encode(rows.bounds.to_json()),
        values_json=b"" if rows.values is None else encode(list(rows.values)),
        collection=payload_ref_message(rows.collection),
        collection_at=rows.collection_at,
        claims=rows.claims,
        kind=rows.kind,
        sources_json=encode([dict(one) for one in rows.sources]) if rows.sources else b"",
    )


def rows(message: pb.FrameRows) -> FrameRows:
    """The rows of a frame."""
    return FrameRows(
        stage_id=message.stage_id,
        loop_id=message.loop_id,
        index=message.index,
        slot=message.slot,
        start=message.start,
        stop=message.stop,
        total=message.total,
        bounds=FrameBounds.from_json(json_object(message.policy_json, "policy_json")),
        values=_values(message.values_json) if message.values_json else None,
        collection=payload_ref(message.collection) if message.HasField("collection") else None,
        collection_at=message.collection_at,
        claims=message.claims,
        kind=message.kind or "loop",
        sources=_sources(message.sources_json) if message.sources_json else (),
    )


def _values(data: bytes) -> tuple[object, ...]:
    values = decode(data)
    if not isinstance(values, list):
        raise InvalidInput("values_json must be a JSON list")
    return tuple(values)


def _sources(data: bytes) -> tuple[Mapping[str, Any], ...]:
    values = decode(data)
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise InvalidInput("sources_json must be a JSON list of objects")
    return tuple(one for one in values if isinstance(one, dict))


def frame_message(frame: GrantedFrame | None) -> pb.Frame | None:
    """A granted frame as a message, if there is one."""
    if frame is None:
        return None
    step = commands.command_message(frame.step)
    return pb.Frame(
        key=key_message(frame.key),
        step=step,
        rows=rows_message(frame.rows),
        lease_left_seconds=frame.lease_left_seconds,
    )


def frame(message: pb.Frame) -> GrantedFrame:
    """A granted frame."""
    return GrantedFrame(
        key=key(message.key),
        step=commands.command(message.step),
        rows=rows(message.rows),
        lease_left_seconds=message.lease_left_seconds if message.HasField("lease_left_seconds") else None,
    )


def claim_message(claim: FrameClaim) -> pb.ClaimOutcome:
    """The outcome of one claim as a message."""
    return pb.ClaimOutcome(slot=slot_message(claim.slot), frame=frame_message(claim.frame), refusal=claim.refusal)


def claim(message: pb.ClaimOutcome) -> FrameClaim:
    """The outcome of one claim."""
    granted = frame(message.frame) if message.HasField("frame") else None
    return FrameClaim(slot=slot(message.slot), frame=granted, refusal=message.refusal)


def committed_rows(message: pb.CommitRequest) -> CommittedRows:
    """What became of the rows of a frame."""
    return CommittedRows(
        result=json_object(message.result_json, "result_json"),
        stop=message.stop,
        success=message.success,
        failed=message.failed,
        breaks=message.breaks,
        first_error=json_object(message.first_error_json, "first_error_json") or None,
        metrics=json_object(message.metrics_json, "metrics_json") or None,
    )


def commit(message: pb.CommitResponse | pb.FailResponse) -> FrameCommit:
    """What the end of a frame leads to."""
    granted = frame(message.next) if message.HasField("next") else None
    return FrameCommit(stream_version=message.stream_version, next=granted)


def beats_message(beats: FrameBeats) -> pb.HeartbeatResponse:
    """What became of a round of heartbeats, as a message."""
    return pb.HeartbeatResponse(
        lost=[key_message(one) for one in beats.lost],
        unanswered=[key_message(one) for one in beats.unanswered],
        token=beats.token,
    )


def beats(message: pb.HeartbeatResponse) -> FrameBeats:
    """What became of a round of heartbeats."""
    return FrameBeats(
        lost=frozenset(key(one) for one in message.lost),
        unanswered=frozenset(key(one) for one in message.unanswered),
        token=message.token,
    )
