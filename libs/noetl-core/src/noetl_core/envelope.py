"""The envelope of an event: drafts before they are placed, bytes once they are, and the chain between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, cast

from noetl_core.canonical import JsonObject, JsonValue, SpeltObject, decode, encode, native, sha256_hex
from noetl_core.errors import Corrupt, InvalidInput, NotCanonical
from noetl_core.payload_hints import IPC
from noetl_core.payloads import PayloadRef
from noetl_core.timestamps import format_time, parse_time
from noetl_core.values import dataclass

EXECUTION_AGGREGATE = "execution"

RESULT_KEYS = frozenset({"status", "reference", "parent_ref", "context"})
RESULT_STATUSES = frozenset({"ok", "error", "skipped", "break", "retry"})
FORBIDDEN_CONTEXT_KEYS = frozenset({"rows", "columns", "data", "response", "result", "payload"})

_time_text = lru_cache(maxsize=256)(format_time)
"""Events of one append share their times."""

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
        return spell(self).content_sha256


class Spelt(NamedTuple):
    """The parts of a draft that take longest to encode, encoded once for everybody who needs them."""

    meta: bytes
    result: bytes
    payload_ref: bytes
    content_sha256: str


def spell(draft: Draft) -> Spelt:
    """Encode the nested parts of a draft, and digest its content."""
    raw = draft.meta
    meta = _spelt(raw) if raw else b"{}"
    result = b"null" if draft.result is None else _spelt(draft.result)
    ref = b"null" if draft.payload_ref is None else encode(draft.payload_ref.to_json())
    content_meta = meta
    if raw and not _NOT_CONTENT.isdisjoint(raw):
        content_meta = encode({key: value for key, value in raw.items() if key not in _NOT_CONTENT})
    content = _join(
        {
            "aggregate_id": "" if draft.aggregate_type == EXECUTION_AGGREGATE else draft.aggregate_id,
            "aggregate_type": draft.aggregate_type,
            "event_type": draft.event_type,
            "meta": native.spelt(content_meta),
            "node_name": draft.node_name,
            "payload_ref": native.spelt(ref),
            "result": native.spelt(result),
            "schema_version": draft.schema_version,
        }
    )
    return Spelt(meta, result, ref, sha256_hex(content))


def _spelt(value: Mapping[str, Any]) -> bytes:
    if type(value) is SpeltObject:
        return value.spelt
    return encode(value if type(value) is dict else dict(value))


def _join(parts: dict[str, Any]) -> bytes:
    """An object whose parts are in the order that RFC 8785 wants; tests hold it to be equal to what `encode` gives."""
    try:
        return native.join(parts)
    except TypeError:
        raise NotCanonical("a lone surrogate", path="a text of the event") from None


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


class StoredEvent(NamedTuple):
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
        f'"ingest_time":"{_time_text(ingest_time)}","stream_version":{stream_version}}}\n'
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
    if not result.keys() <= RESULT_KEYS:
        extra = result.keys() - RESULT_KEYS
        raise InvalidInput(f"a result has only {sorted(RESULT_KEYS)}, not {sorted(extra)}")
    if result.get("status") not in RESULT_STATUSES:
        raise InvalidInput(f"result status {result.get('status')!r} is none of {sorted(RESULT_STATUSES)}")
    for key in ("reference", "parent_ref", "context"):
        value = result.get(key)
        if value is not None and type(value) is not dict and not isinstance(value, Mapping):
            raise InvalidInput(f"{key!r} of a result is an object or null")
    reference = result.get("reference") or {}
    if IPC in reference and not {"uri", "sha256"} <= reference.keys():
        raise InvalidInput("the reference of a result hints at a copy, and does not say where the payload itself is")
    context = result.get("context")
    if context and not FORBIDDEN_CONTEXT_KEYS.isdisjoint(context):
        inline = context.keys() & FORBIDDEN_CONTEXT_KEYS
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
    spelt: Spelt | None = None,
) -> bytes:
    """Canonical bytes of everything about an event that does not depend on its place; absent facts are left out.

    Put together in the order of keys that RFC 8785 wants.
    """
    spelt = spelt or spell(draft)
    stream_id = str(execution_id)
    parts: dict[str, Any] = {
        "aggregate_id": draft.aggregate_id or stream_id,
        "aggregate_type": draft.aggregate_type,
    }
    if draft.causation_id:
        parts["causation_id"] = draft.causation_id
    if draft.command_id:
        parts["command_id"] = draft.command_id
    parts["content_sha256"] = content_sha256
    if draft.correlation_id:
        parts["correlation_id"] = draft.correlation_id
    parts["event_id"] = str(event_id)
    parts["event_time"] = _time_text(event_time)
    parts["event_type"] = draft.event_type
    parts["execution_id"] = stream_id
    if draft.frame_id:
        parts["frame_id"] = draft.frame_id
    parts["idempotency_key"] = draft.idempotency_key
    if draft.meta:
        parts["meta"] = native.spelt(spelt.meta)
    if draft.node_name:
        parts["node_name"] = draft.node_name
    parts["organization_id"] = organization_id
    if draft.parent_event_id:
        parts["parent_event_id"] = draft.parent_event_id
    if parent_execution_id:
        parts["parent_execution_id"] = parent_execution_id
    if draft.payload_ref is not None:
        parts["payload_ref"] = native.spelt(spelt.payload_ref)
    if producer:
        parts["producer"] = producer
    if draft.result:
        parts["result"] = native.spelt(spelt.result)
    parts["schema_name"] = f"noetl.{draft.event_type}"
    parts["schema_version"] = draft.schema_version
    if draft.stage_id:
        parts["stage_id"] = draft.stage_id
    parts["stream_id"] = stream_id
    parts["tenant_id"] = tenant_id
    if draft.trace:
        parts["trace"] = draft.trace
    return _join(parts)


def trace_of(body: bytes) -> str:
    """The trace of an event, without reading all of it: among the members of a body it is the last."""
    _, found, rest = body.rpartition(b',"trace":"')
    if not found:
        return ""
    spelt = rest.removesuffix(b'"}')
    # With a quote it is the member of an inner object, or escaped.
    return parse_body(body).trace if b'"' in spelt or b"\\" in spelt else spelt.decode()


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
