"""Payloads and lineage as protobuf carries them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from noetl.payload.v1 import payload_pb2 as pb
from noetl_core.canonical import JsonObject, encode
from noetl_core.collection.report import CollectionReport
from noetl_core.lineage import Trace, TracedResult
from noetl_core.payloads import PayloadRef

from noetl_contracts.mapping.events import json_object, payload_ref, payload_ref_message
from noetl_contracts.mapping.times import moment, optional_timestamp, timestamp

_COUNTS = tuple(field.name for field in fields(CollectionReport) if field.type == "int")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPayload:
    """What a server knows of a payload."""

    ref: PayloadRef
    stored_at: datetime | None
    reference: JsonObject | None


def payload_message(ref: PayloadRef, *, stored_at: datetime | None, reference: JsonObject | None) -> pb.Payload:
    """A payload that was found."""
    return pb.Payload(
        ref=payload_ref_message(ref),
        stored_at=optional_timestamp(stored_at),
        reference_json=b"" if reference is None else encode(reference),
    )


def payload(message: pb.Payload) -> KnownPayload:
    """A payload that somebody found."""
    return KnownPayload(
        ref=payload_ref(message.ref),
        stored_at=moment(message.stored_at) if message.HasField("stored_at") else None,
        reference=json_object(message.reference_json, "reference_json") if message.reference_json else None,
    )


def traced_result_message(result: TracedResult) -> pb.TracedResult:
    """One result of a chain."""
    return pb.TracedResult(
        step=result.step,
        stream_version=result.stream_version,
        event_id=str(result.event_id),
        command_id=result.command_id,
        status=result.status,
        recorded_at=timestamp(result.recorded_at),
        reference_json=encode(result.reference),
        parent_ref_id=result.parent_ref_id or "",
    )


def trace(message: pb.TraceResponse) -> Trace:
    """A whole chain."""
    return Trace(results=tuple(_traced_result(one) for one in message.results), truncated=message.truncated)


def collect_response(report: CollectionReport) -> pb.CollectResponse:
    """What a collection has come to so far."""
    counts = {name: getattr(report, name) for name in _COUNTS}
    return pb.CollectResponse(
        applied=report.applied,
        grace_seconds=report.grace_seconds,
        phase=report.phase,
        next_due=optional_timestamp(report.next_due),
        collections=[str(execution_id) for execution_id in report.collections],
        **counts,
    )


def collection_report(message: pb.CollectResponse) -> CollectionReport:
    """Read it back."""
    return CollectionReport(
        applied=message.applied,
        grace_seconds=message.grace_seconds,
        phase=message.phase,
        next_due=moment(message.next_due) if message.HasField("next_due") else None,
        collections=tuple(int(execution_id) for execution_id in message.collections),
        **{name: getattr(message, name) for name in _COUNTS},
    )


def _traced_result(message: pb.TracedResult) -> TracedResult:
    return TracedResult(
        step=message.step,
        stream_version=message.stream_version,
        event_id=int(message.event_id),
        command_id=message.command_id,
        status=message.status,
        recorded_at=moment(message.recorded_at),
        reference=json_object(message.reference_json, "reference_json"),
        parent_ref_id=message.parent_ref_id or None,
    )
