"""The envelope of an event: drafts before they are placed, bytes once they are, and the chain between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, cast

from noetl_core.canonical import JsonObject, JsonValue, SpeltObject, encode, native, read_canonical
from noetl_core.errors import Corrupt, InvalidInput, NotCanonical
from noetl_core.payload_hints import IPC
from noetl_core.payloads import PayloadRef
from noetl_core.timestamps import format_time, parse_time
from noetl_core.values import dataclass, maker, new_tuple

EXECUTION_AGGREGATE = "execution"

RESULT_KEYS = frozenset({"status", "reference", "parent_ref", "context"})
RESULT_STATUSES = frozenset({"ok", "error", "skipped", "break", "retry"})
FORBIDDEN_CONTEXT_KEYS = frozenset({"rows", "columns", "data", "response", "result", "payload"})

_LONGEST_NAME = 256
"""Of a node, if what events of its kind have in common is to be kept."""


@lru_cache(maxsize=256)
def time_bytes(moment: datetime) -> bytes:
    """Events of one append share their times."""
    return format_time(moment).encode()


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
    """Or `@n`: the event of the draft at place n, from 0, of those before it that are appended to the same stream."""
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
        try:
            return _spell_content(self)[-1]
        except TypeError:
            _refuse_surrogates(self)
            raise


class Spelt(NamedTuple):
    """A draft as bytes."""

    content_sha256: str
    body: bytes
    result: bytes | None
    """The result by itself, as it is spelt in the body."""


def _spell_content(draft: Draft) -> tuple[_Kind, bytes, bytes, bytes, bytes, str]:
    """The kind of a draft, its nested parts as bytes, and the digest of its content.

    Put together in the order of keys that RFC 8785 wants; tests hold it to be equal to what `encode` gives.
    """
    raw, raw_result, raw_ref, node_name = draft.meta, draft.result, draft.payload_ref, draft.node_name
    meta = content_meta = (raw.spelt if type(raw) is SpeltObject else _spelt(raw)) if raw else b"{}"
    result = b"null" if raw_result is None else _spelt(raw_result)
    ref = b"null" if raw_ref is None else encode(raw_ref.to_json())
    if raw and not _NOT_CONTENT.isdisjoint(raw):
        content_meta = encode({key: value for key, value in raw.items() if key not in _NOT_CONTENT})
    kind_of = _known_kind if len(node_name) <= _LONGEST_NAME else _make_kind
    kind = kind_of(draft.event_type, draft.schema_version, draft.aggregate_type, node_name)
    is_execution, before, between, after, _, _, _, _ = kind
    about = native.text(draft.aggregate_id) if draft.aggregate_id else b'""'
    content = (
        b'{"aggregate_id":', b'""' if is_execution else about, before, content_meta, between, ref,
        b',"result":', result, after,
    )  # fmt: skip
    return kind, about, meta, result, ref, sha256(b"".join(content)).hexdigest()


def _spelt(value: Mapping[str, Any]) -> bytes:
    if type(value) is SpeltObject:
        return value.spelt
    return encode(value if type(value) is dict else dict(value))


def _refuse_surrogates(draft: Draft) -> None:
    """Texts with lone ones cannot be spelt; looked for only when that has failed."""
    for one in fields(draft):
        _refuse_surrogate(getattr(draft, one.name), one.name)


def _refuse_surrogate(value: object, name: str) -> None:
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise NotCanonical("a lone surrogate", path=name)


class _Kind(NamedTuple):
    """What events of one kind have in common, as it stands in their content and in their bodies."""

    is_execution: bool
    content_type: bytes
    content_node: bytes
    content_schema: bytes
    aggregate_type: bytes
    event_type: bytes
    node_name: bytes
    schema: bytes


def _make_kind(event_type: str, schema_version: int, aggregate_type: str, node_name: str) -> _Kind:
    event, aggregate, node = map(native.text, (event_type, aggregate_type, node_name))
    return _Kind(
        is_execution=aggregate_type == EXECUTION_AGGREGATE,
        content_type=b',"aggregate_type":%b,"event_type":%b,"meta":' % (aggregate, event),
        content_node=b',"node_name":%b,"payload_ref":' % node,
        content_schema=b',"schema_version":%d}' % schema_version,
        aggregate_type=b',"aggregate_type":%b' % aggregate,
        event_type=b'","event_type":%b,"execution_id":' % event,
        node_name=b',"node_name":%b' % node if node_name else b"",
        schema=b',"schema_name":%b,"schema_version":%d' % (native.text(f"noetl.{event_type}"), schema_version),
    )


_known_kind = lru_cache(maxsize=4096)(_make_kind)


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
    return link_checksum(prev_checksum, stream_version, aggregate_version, time_bytes(ingest_time), body)


def link_checksum(
    prev_checksum: str, stream_version: int, aggregate_version: int, ingest_time: bytes, body: bytes
) -> str:
    """As `chain_checksum`, with the time as `time_bytes` gives it."""
    place = b'%b\n{"aggregate_version":%d,"ingest_time":"%b","stream_version":%d}\n' % (
        prev_checksum.encode(),
        aggregate_version,
        ingest_time,
        stream_version,
    )
    return sha256(place + body).hexdigest()


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


class StreamSpelling:
    """Spells the events of one stream: what all of them have is spelt once."""

    def __init__(
        self,
        *,
        tenant_id: str,
        organization_id: str,
        execution_id: int,
        producer: str = "",
        parent_execution_id: int | None = None,
    ) -> None:
        for text in (tenant_id, organization_id, producer):
            if not text.isascii():
                _refuse_surrogate(text, "whose events they are")
        self._own_id = b'"%d"' % execution_id
        self._organization = b',"organization_id":%b' % native.text(organization_id)
        self._parent = _member(b',"parent_execution_id":', str(parent_execution_id or ""))
        self._producer = _member(b',"producer":', producer)
        self._tail = b',"stream_id":%b,"tenant_id":%b' % (self._own_id, native.text(tenant_id))

    def spell(self, draft: Draft, event_id: int, event_time: datetime) -> Spelt:
        """The digest of its content, and canonical bytes of everything about an event that does not depend on its
        place: absent facts are left out, and the others put together in the order of keys that RFC 8785 wants."""
        try:
            kind, about, meta, result, payload_ref, content_sha256 = _spell_content(draft)
            _, _, _, _, aggregate_type, event_type, node_name, schema = kind
            own_id, raw_result = self._own_id, draft.result
            parts = (
                b'{"aggregate_id":',
                about if draft.aggregate_id else own_id,
                aggregate_type,
                _member(b',"causation_id":', text) if (text := draft.causation_id) else b"",
                _member(b',"command_id":', text) if (text := draft.command_id) else b"",
                b',"content_sha256":"%b"' % content_sha256.encode(),
                _member(b',"correlation_id":', text) if (text := draft.correlation_id) else b"",
                b',"event_id":"%d","event_time":"' % event_id,
                time_bytes(event_time),
                event_type,
                own_id,
                _member(b',"frame_id":', text) if (text := draft.frame_id) else b"",
                b',"idempotency_key":',
                native.text(draft.idempotency_key),
                b',"meta":' + meta if draft.meta else b"",
                node_name,
                self._organization,
                _member(b',"parent_event_id":', text) if (text := draft.parent_event_id) else b"",
                self._parent,
                b',"payload_ref":' + payload_ref if draft.payload_ref is not None else b"",
                self._producer,
                b',"result":' + result if raw_result else b"",
                schema,
                _member(b',"stage_id":', text) if (text := draft.stage_id) else b"",
                self._tail,
                _member(b',"trace":', text) if (text := draft.trace) else b"",
                b"}",
            )
        except TypeError:
            _refuse_surrogates(draft)
            raise
        return new_tuple(Spelt, (content_sha256, b"".join(parts), None if raw_result is None else result))


def _member(name: bytes, text: str) -> bytes:
    return name + native.text(text) if text else b""


def trace_of(body: bytes) -> str:
    """The trace of an event, without reading all of it: among the members of a body it is the last."""
    _, found, rest = body.rpartition(b',"trace":"')
    if not found:
        return ""
    spelt = rest.removesuffix(b'"}')
    # With a quote it is the member of an inner object, or escaped.
    return parse_body(body).trace if b'"' in spelt or b"\\" in spelt else spelt.decode()


_make_envelope = maker(Envelope)
_event_time = lru_cache(maxsize=256)(parse_time)
_TEXTS = frozenset(one.name for one in fields(Envelope)) - {"schema_version", "result", "payload_ref", "meta"}
"""Members of a body that are texts where they are there: ids and times too."""


def parse_body(body: bytes) -> Envelope:
    """The envelope that canonical bytes tell; every service reads every event, so it is made by position."""
    told = read_canonical(body)
    if not isinstance(told, dict):
        raise Corrupt("the body of an event is not an object")
    for name, value in told.items():
        if type(value) is not str and name in _TEXTS:
            raise Corrupt(f"{name!r} in the body of an event is not text")
    known: Callable[..., Any] = told.get
    try:
        return _make_envelope(
            int(cast("str", told["event_id"])),
            told["tenant_id"],
            told["organization_id"],
            int(cast("str", told["execution_id"])),
            told["event_type"],
            told["schema_version"],
            told["aggregate_type"],
            told["aggregate_id"],
            _event_time(cast("str", told["event_time"])),
            told["idempotency_key"],
            told["content_sha256"],
            known("producer", ""),
            known("node_name", ""),
            known("causation_id", ""),
            known("correlation_id", ""),
            known("parent_event_id", ""),
            known("parent_execution_id", ""),
            known("stage_id", ""),
            known("frame_id", ""),
            known("command_id", ""),
            known("result"),
            _payload_ref(known("payload_ref")),
            known("meta") or {},
            known("trace", ""),
        )
    except (KeyError, ValueError) as exc:
        raise Corrupt(f"the body of an event lacks a field: {exc}") from exc


def _payload_ref(value: JsonValue) -> PayloadRef | None:
    return PayloadRef.from_json(value) if isinstance(value, dict) else None
