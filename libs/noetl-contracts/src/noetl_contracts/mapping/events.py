"""Events, drafts and appends as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from noetl.common.v1 import common_pb2 as common
from noetl.event.v1 import event_pb2 as pb
from noetl_core.append import Appended, AppendRequest, Fence, Hint, StreamAppend, StreamStart
from noetl_core.canonical import decode, encode, read_spelt
from noetl_core.envelope import EXECUTION_AGGREGATE, Draft, StoredEvent
from noetl_core.errors import InvalidInput
from noetl_core.ids import parse_id
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import MovedHead, Scope
from noetl_core.values import maker

from noetl_contracts.mapping.times import moment, optional_timestamp, timestamp


def scope_message(scope: Scope | None) -> common.Scope | None:
    """Whose data, if a service says so."""
    if scope is None:
        return None
    return common.Scope(tenant_id=scope.tenant_id, organization_id=scope.organization_id)


def told_scope(message: common.Scope) -> Scope:
    """Whose data api says that it is."""
    return Scope(tenant_id=message.tenant_id, organization_id=message.organization_id)


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object that a message carries as bytes; empty bytes are an empty object."""
    if not data:
        return {}
    value: Any = decode(data)
    if type(value) is not dict:
        raise InvalidInput(f"{what} is not a JSON object")
    return value


def _part(data: bytes, what: str) -> Mapping[str, Any]:
    """As `json_object`; what is canonical already keeps its bytes, which the log would spell the same again."""
    value: Any = read_spelt(data)
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} is not a JSON object")
    return value


def payload_ref_message(ref: PayloadRef | None) -> common.PayloadRef | None:
    """A payload reference as a message."""
    if ref is None:
        return None
    return common.PayloadRef(
        uri=ref.uri, sha256=ref.sha256, media_type=ref.media_type, kind=ref.kind, byte_length=ref.bytes
    )


def payload_ref(message: common.PayloadRef) -> PayloadRef:
    """A payload reference."""
    return PayloadRef(
        uri=message.uri,
        sha256=message.sha256,
        media_type=message.media_type,
        kind=message.kind,
        bytes=message.byte_length,
    )


def draft_message(draft: Draft) -> pb.Draft:
    """A draft as a message."""
    return pb.Draft(
        event_type=draft.event_type,
        schema_version=draft.schema_version,
        idempotency_key=draft.idempotency_key,
        aggregate_type=draft.aggregate_type,
        aggregate_id=draft.aggregate_id,
        expected_aggregate_version=draft.expected_aggregate_version,
        node_name=draft.node_name,
        event_time=optional_timestamp(draft.event_time),
        causation_id=draft.causation_id,
        correlation_id=draft.correlation_id,
        parent_event_id=draft.parent_event_id,
        stage_id=draft.stage_id,
        frame_id=draft.frame_id,
        command_id=draft.command_id,
        result_json=b"" if draft.result is None else encode(dict(draft.result)),
        payload_ref=payload_ref_message(draft.payload_ref),
        meta_json=encode(dict(draft.meta)) if draft.meta else b"",
        not_before=optional_timestamp(draft.not_before),
        trace=draft.trace,
    )


_make_draft = maker(Draft)
_draft_fields = attrgetter(
    "event_type", "idempotency_key", "schema_version", "aggregate_type", "aggregate_id", "node_name", "causation_id",
    "correlation_id", "parent_event_id", "stage_id", "frame_id", "command_id", "result_json", "meta_json", "trace",
)  # fmt: skip


def draft(message: pb.Draft) -> Draft:
    """A draft; a large append has thousands of them, so each field is read once, and most of them in one go."""
    (
        event_type, key, schema_version, aggregate_type, aggregate_id, node_name, causation_id,
        correlation_id, parent_event_id, stage_id, frame_id, command_id, result_json, meta_json, trace,
    ) = _draft_fields(message)  # fmt: skip
    has = message.HasField
    return _make_draft(
        event_type,
        key,
        schema_version or 1,
        aggregate_type or EXECUTION_AGGREGATE,
        aggregate_id,
        message.expected_aggregate_version if has("expected_aggregate_version") else None,
        node_name,
        moment(message.event_time) if has("event_time") else None,
        causation_id,
        correlation_id,
        parent_event_id,
        stage_id,
        frame_id,
        command_id,
        _part(result_json, "result_json") if result_json else None,
        payload_ref(message.payload_ref) if has("payload_ref") else None,
        _part(meta_json, "meta_json") if meta_json else {},
        moment(message.not_before) if has("not_before") else None,
        trace,
    )


def fence_message(fence: Fence | None) -> common.Fence | None:
    """A fence as a message; none for none."""
    return None if fence is None else common.Fence(role=fence.role, shard=fence.shard, epoch=fence.epoch)


def fence_of(message: common.Fence) -> Fence | None:
    """The fence that a message carries; none if nobody has set it."""
    return Fence(role=message.role, shard=message.shard, epoch=message.epoch) if message.ByteSize() else None


def append_message(request: AppendRequest) -> pb.AppendRequest:
    """An append as a message."""
    return pb.AppendRequest(
        scope=common.Scope(tenant_id=request.tenant_id, organization_id=request.organization_id),
        streams=[_stream_message(stream) for stream in request.streams],
        fence=fence_message(request.fence),
        asked_by=fence_message(request.asked_by),
        hints=[
            pb.Hint(
                subject=hint.subject,
                body=hint.body,
                execution_id=str(hint.execution_id),
                message_id=hint.message_id,
            )
            for hint in request.hints
        ],
        producer=request.producer,
    )


def append_request(message: pb.AppendRequest, scope: Scope) -> AppendRequest:
    """An append for a scope that the server has established."""
    return AppendRequest(
        tenant_id=scope.tenant_id,
        organization_id=scope.organization_id,
        streams=tuple(_stream(stream) for stream in message.streams),
        fence=fence_of(message.fence),
        asked_by=fence_of(message.asked_by),
        hints=tuple(
            Hint(
                subject=hint.subject,
                body=hint.body,
                execution_id=parse_id(hint.execution_id),
                message_id=hint.message_id,
            )
            for hint in message.hints
        ),
        producer=message.producer,
    )


def _stream_message(stream: StreamAppend) -> pb.StreamAppend:
    start = stream.start
    parent = str(start.parent_execution_id or "") if start else ""
    return pb.StreamAppend(
        execution_id=str(stream.execution_id),
        drafts=[draft_message(one) for one in stream.drafts],
        expected_stream_version=stream.expected_stream_version,
        start=pb.StreamStart(parent_execution_id=parent) if start else None,
    )


def _stream(message: pb.StreamAppend) -> StreamAppend:
    start = None
    if message.HasField("start"):
        parent = message.start.parent_execution_id
        start = StreamStart(parent_execution_id=parse_id(parent) if parent else None)
    return StreamAppend(
        execution_id=parse_id(message.execution_id),
        drafts=tuple(map(draft, message.drafts)),
        expected_stream_version=(
            message.expected_stream_version if message.HasField("expected_stream_version") else None
        ),
        start=start,
    )


def stored_message(event: StoredEvent) -> pb.StoredEvent:
    """A stored event as a message; the body travels as it is."""
    return pb.StoredEvent(
        body=event.body,
        stream_version=event.stream_version,
        aggregate_version=event.aggregate_version,
        ingest_time=timestamp(event.ingest_time),
        prev_checksum=event.prev_checksum,
        checksum=event.checksum,
    )


def stored(message: pb.StoredEvent) -> StoredEvent:
    """A stored event."""
    return StoredEvent(
        body=message.body,
        stream_version=message.stream_version,
        aggregate_version=message.aggregate_version,
        ingest_time=moment(message.ingest_time),
        prev_checksum=message.prev_checksum,
        checksum=message.checksum,
    )


def appended_message(outcome: Appended) -> pb.AppendedEvent:
    """The outcome for one draft as a message."""
    return pb.AppendedEvent(event=stored_message(outcome.event), duplicate=outcome.duplicate)


def append_response(outcomes: Sequence[Appended], *, places_only: bool = False) -> pb.AppendResponse:
    """The outcome of an append as a message, filled in place: a large append has a thousand of them."""
    response = pb.AppendResponse()
    add = response.events.add
    times: dict[datetime, Timestamp] = {}
    for event, duplicate in outcomes:
        added = add()
        stored = added.event
        stored.stream_version = event.stream_version
        stored.aggregate_version = event.aggregate_version
        if duplicate:
            added.duplicate = True
        elif places_only:
            continue
        stored.body = event.body
        stored.prev_checksum = event.prev_checksum
        stored.checksum = event.checksum
        moment = times.get(event.ingest_time)
        if moment is None:
            moment = times[event.ingest_time] = timestamp(event.ingest_time)
        stored.ingest_time.CopyFrom(moment)
    return response


def appended(message: pb.AppendedEvent) -> Appended:
    """The outcome for one draft."""
    return Appended(event=stored(message.event), duplicate=message.duplicate)


def head_message(head: MovedHead) -> pb.Head:
    """A stream head as a message."""
    return pb.Head(
        execution_id=str(head.execution_id),
        tenant_id=head.tenant_id,
        organization_id=head.organization_id,
        shard=head.shard,
        version=head.version,
        terminal=head.terminal,
        updated_at=timestamp(head.updated_at),
    )


def head(message: pb.Head) -> MovedHead:
    """A stream head."""
    return MovedHead(
        execution_id=parse_id(message.execution_id),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        shard=message.shard,
        version=message.version,
        terminal=message.terminal,
        updated_at=moment(message.updated_at),
    )
