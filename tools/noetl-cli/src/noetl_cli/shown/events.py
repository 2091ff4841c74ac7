"""Events for people and programs."""

from collections.abc import Mapping
from typing import Any

from noetl_core.envelope import Envelope, StoredEvent

from noetl_cli.shown.durations import time_text
from noetl_cli.shown.text import one_line

_NOTES: Mapping[str, tuple[str, ...]] = {
    "playbook.initialized": ("path", "version"),
    "workflow.initialized": ("entry_step",),
    "step.enter": ("activation", "cause_step"),
    "step.exit": ("status", "fired"),
    "call.partial": ("task", "chunk_index", "row_count", "has_more"),
    "step.chunk": ("chunk_index", "fired"),
    "command.issued": ("attempt", "pool"),
    "command.claimed": ("worker_id", "lease_seconds"),
    "command.started": ("worker_id",),
    "command.heartbeat": ("worker_id",),
    "command.abandoned": ("previous_owner", "previous_attempt", "reclaimer"),
    "execution.cancelled": ("reason", "cancelled_by"),
}
"""What is worth a place on the line; all of it is in the JSON form."""


def event_document(event: StoredEvent) -> dict[str, Any]:
    """For programs; every key is always there."""
    envelope = event.envelope()
    return {
        "stream_version": event.stream_version,
        "event_id": str(envelope.event_id),
        "execution_id": str(envelope.execution_id),
        "event_type": envelope.event_type,
        "schema_version": envelope.schema_version,
        "event_time": time_text(envelope.event_time),
        "ingest_time": time_text(event.ingest_time),
        "node_name": envelope.node_name or None,
        "aggregate_type": envelope.aggregate_type,
        "aggregate_id": envelope.aggregate_id,
        "aggregate_version": event.aggregate_version,
        "command_id": envelope.command_id or None,
        "result": envelope.result,
        "payload_ref": envelope.payload_ref.to_json() if envelope.payload_ref is not None else None,
        "meta": envelope.meta,
        "idempotency_key": envelope.idempotency_key,
        "producer": envelope.producer or None,
        "trace": envelope.trace or None,
        "prev_checksum": event.prev_checksum,
        "checksum": event.checksum,
    }


def event_line(event: StoredEvent) -> str:
    """One event in one line: its place, when it was stored, what it is, and about what."""
    envelope = event.envelope()
    clock = (time_text(event.ingest_time) or "")[11:23]
    notes = " ".join(f"{name}={value}" for name, value in _notes(envelope).items())
    line = f"{event.stream_version:>5}  {clock}  {envelope.event_type:<21}  {envelope.node_name:<16}  {notes}"
    return one_line(line.rstrip())


def _notes(envelope: Envelope) -> Mapping[str, str]:
    notes = {
        name: _note(envelope.meta[name])
        for name in _NOTES.get(envelope.event_type, ())
        if envelope.meta.get(name) not in (None, "", [])
    }
    error = _error(envelope)
    if error is not None:
        notes["error"] = f"{error.get('code')}: {error.get('message')}"
    reference = (envelope.result or {}).get("reference")
    if isinstance(reference, dict):
        notes["bytes"] = _note(reference.get("bytes"))
    return notes


def _error(envelope: Envelope) -> Mapping[str, Any] | None:
    context = (envelope.result or {}).get("context")
    for place in (envelope.meta, context if isinstance(context, dict) else {}):
        error = place.get("error")
        if isinstance(error, dict):
            return error
    return None


def _note(value: object) -> str:
    return ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
