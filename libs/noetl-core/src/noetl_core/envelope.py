"""The envelope of an event: drafts before they are placed, bytes once they are, and the chain between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from noetl_core.canonical import JsonObject, JsonValue, decode, encode, sha256_hex
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.payloads import PayloadRef
from noetl_core.timestamps import format_time, parse_time

EXECUTION_AGGREGATE = "execution"

RESULT_KEYS = frozenset({"status", "reference", "parent_ref", "context"})
RESULT_STATUSES = frozenset({"ok", "error", "skipped", "break", "retry"})
FORBIDDEN_CONTEXT_KEYS = frozenset({"rows", "columns", "data", "response", "result", "payload"})

_NOT_CONTENT = frozenset({"locality", "worker_locator", "source_locality", "placement"})
"""Facts about where work ran; two deliveries of the same fact may differ in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An event that has no place in the log yet."""

    event_type: str
    idempotency_key: str
    schema_version: int = 1
    aggregate_type: str = EXECUTION_AGGREGATE
    aggregate_id: str = ""
    expected_aggregate_version: int | None = None
    node_name: str = ""
    event_time: datetime | None = None
    causation_id: str = ""
    correlation_id: str = ""
    parent_event_id: str = ""
    stage_id: str = ""
    frame_id: str = ""
    command_id: str = ""
    result: Mapping[str, Any] | None = None
    payload_ref: PayloadRef | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    not_before: datetime | None = None
    trace: str = ""

    def content_sha256(self) -> str:
        """What makes two drafts the same fact: not time, producer, trace, locality or ids."""
        meta = self.meta
        if not _NOT_CONTENT.isdisjoint(meta):
            meta = {key: value for key, value in meta.items() if key not in _NOT_CONTENT}
        content = {
            "event_type": self.event_type,
            "schema_version": self.schema_version,
            "aggregate_type": self.aggregate_type,
            "aggregate_id": "" if self.aggregate_type == EXECUTION_AGGREGATE else self.aggregate_id,
            "node_name": self.node_name,
            "result": self.result,
            "payload_ref": self.payload_ref.to_json() if self.payload_ref else None,
            "meta": meta,
        }
        return sha256_hex(encode(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """An event as its body tells it; what depends on its place is in `StoredEvent`."""

    event_id: int
    tenant_id: str
    organization_id: str
    execution_id: int
    event_type: str
    schema_version: int
    aggregate_type: str
    aggregate_id: str
    event_time: datetime
    idempotency_key: str
    content_sha256: str
    producer: str = ""
    node_name: str = ""
    causation_id: str = ""
    correlation_id: str = ""
    parent_event_id: str = ""
    parent_execution_id: str = ""
    stage_id: str = ""
    frame_id: str = ""
    command_id: str = ""
    result: JsonObject | None = None
    payload_ref: PayloadRef | None = None
    meta: JsonObject = field(default_factory=dict)
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event in the log. The bytes are the truth; everything else about it is an extract."""

    body: bytes
    stream_version: int
    aggregate_version: int
    ingest_time: datetime
    prev_checksum: str
    checksum: str

    def envelope(self) -> Envelope:
        """The body, read."""
        return parse_body(self.body)


def chain_checksum(
    *, prev_checksum: str, stream_version: int, aggregate_version: int, ingest_time: datetime, body: bytes
) -> str:
    """Checksum that seals an event's body to its place and to the event before it."""
    place = (
        f'{prev_checksum}\n{{"aggregate_version":{aggregate_version},'
        f'"ingest_time":"{format_time(ingest_time)}","stream_version":{stream_version}}}\n'
    )
    return sha256_hex(place.encode() + body)


def verify_link(event: StoredEvent) -> None:
    """Refuse an event whose checksum does not follow from its bytes and place."""
    computed = chain_checksum(
        prev_checksum=event.prev_checksum,
        stream_version=event.stream_version,
        aggregate_version=event.aggregate_version,
        ingest_time=event.ingest_time,
        body=event.body,
    )
    if computed != event.checksum:
        raise Corrupt(
            f"event at version {event.stream_version} has checksum {event.checksum}, its bytes give {computed}"
        )


def check_result_shape(result: Mapping[str, Any]) -> None:
    """Refuse a result that carries more than status, references and scalars; the database refuses it too."""
    extra = result.keys() - RESULT_KEYS
    if extra:
        raise InvalidInput(f"a result has only {sorted(RESULT_KEYS)}, not {sorted(extra)}")
    if result.get("status") not in RESULT_STATUSES:
        raise InvalidInput(f"result status {result.get('status')!r} is none of {sorted(RESULT_STATUSES)}")
    for key in ("reference", "parent_ref", "context"):
        if not isinstance(result.get(key), Mapping | None):
            raise InvalidInput(f"{key!r} of a result is an object or null")
    inline = (result.get("context") or {}).keys() & FORBIDDEN_CONTEXT_KEYS
    if inline:
        raise InvalidInput(f"data never rides in events: {sorted(inline)} in the result's context")


def encode_body(
    draft: Draft,
    *,
    event_id: int,
    tenant_id: str,
    organization_id: str,
    execution_id: int,
    event_time: datetime,
    producer: str,
    parent_execution_id: str,
    content_sha256: str,
) -> bytes:
    """Canonical bytes of everything about an event that does not depend on its place; absent facts are left out."""
    stream_id = str(execution_id)
    body: dict[str, Any] = {
        "event_id": str(event_id),
        "tenant_id": tenant_id,
        "organization_id": organization_id,
        "execution_id": stream_id,
        "stream_id": stream_id,
        "aggregate_id": draft.aggregate_id or stream_id,
        "aggregate_type": draft.aggregate_type,
        "event_type": draft.event_type,
        "schema_name": f"noetl.{draft.event_type}",
        "schema_version": draft.schema_version,
        "event_time": format_time(event_time),
        "idempotency_key": draft.idempotency_key,
        "content_sha256": content_sha256,
    }
    optional = {
        "producer": producer,
        "node_name": draft.node_name,
        "causation_id": draft.causation_id,
        "correlation_id": draft.correlation_id,
        "parent_event_id": draft.parent_event_id,
        "parent_execution_id": parent_execution_id,
        "stage_id": draft.stage_id,
        "frame_id": draft.frame_id,
        "command_id": draft.command_id,
        "result": draft.result,
        "payload_ref": draft.payload_ref.to_json() if draft.payload_ref else None,
        "meta": draft.meta,
        "trace": draft.trace,
    }
    body.update({key: value for key, value in optional.items() if value})
    return encode(body)


def parse_body(body: bytes) -> Envelope:
    """The envelope that canonical bytes tell."""
    fields = decode(body)
    if not isinstance(fields, dict):
        raise Corrupt("the body of an event is not an object")
    try:
        return Envelope(
            event_id=int(_text(fields, "event_id")),
            tenant_id=_text(fields, "tenant_id"),
            organization_id=_text(fields, "organization_id"),
            execution_id=int(_text(fields, "execution_id")),
            event_type=_text(fields, "event_type"),
            schema_version=cast("int", fields["schema_version"]),
            aggregate_type=_text(fields, "aggregate_type"),
            aggregate_id=_text(fields, "aggregate_id"),
            event_time=parse_time(_text(fields, "event_time")),
            idempotency_key=_text(fields, "idempotency_key"),
            content_sha256=_text(fields, "content_sha256"),
            producer=_optional_text(fields, "producer"),
            node_name=_optional_text(fields, "node_name"),
            causation_id=_optional_text(fields, "causation_id"),
            correlation_id=_optional_text(fields, "correlation_id"),
            parent_event_id=_optional_text(fields, "parent_event_id"),
            parent_execution_id=_optional_text(fields, "parent_execution_id"),
            stage_id=_optional_text(fields, "stage_id"),
            frame_id=_optional_text(fields, "frame_id"),
            command_id=_optional_text(fields, "command_id"),
            result=cast("JsonObject | None", fields.get("result")),
            payload_ref=_payload_ref(fields.get("payload_ref")),
            meta=cast("JsonObject", fields.get("meta") or {}),
            trace=_optional_text(fields, "trace"),
        )
    except (KeyError, ValueError) as exc:
        raise Corrupt(f"the body of an event lacks a field: {exc}") from exc


def _text(fields: Mapping[str, JsonValue], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise Corrupt(f"{key!r} in the body of an event is not text")
    return value


def _optional_text(fields: Mapping[str, JsonValue], key: str) -> str:
    return _text(fields, key) if key in fields else ""


def _payload_ref(value: JsonValue) -> PayloadRef | None:
    return PayloadRef.from_json(value) if isinstance(value, dict) else None
