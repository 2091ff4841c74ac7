"""A numbered batch as column arrays: what the log, the heads and the outbox get in one statement each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_contracts.messages import event_headers
from noetl_contracts.subjects import event_subject
from noetl_core.append import Head, Numbered
from noetl_core.canonical import encode

_NOTIFY_LIMIT = 100


def event_columns(numbered: Numbered) -> tuple[list[Any], ...]:
    rows = []
    for placed in numbered.events:
        stored, prepared, draft, head = placed.stored, placed.prepared, placed.prepared.draft, placed.head
        meta = draft.meta
        rows.append(
            (
                head.execution_id,
                stored.stream_version,
                prepared.event_id,
                head.tenant_id,
                head.organization_id,
                draft.event_type,
                draft.aggregate_type,
                placed.aggregate_id,
                stored.aggregate_version,
                draft.idempotency_key,
                prepared.content_sha256,
                prepared.event_time,
                stored.ingest_time,
                draft.node_name or None,
                draft.stage_id or None,
                draft.frame_id or None,
                draft.command_id or None,
                _text(meta.get("loop_id")),
                _text(meta.get("epoch_id")),
                result_extract(draft.result) if draft.result is not None else None,
                stored.prev_checksum,
                stored.checksum,
                stored.body,
            )
        )
    return tuple(list(column) for column in zip(*rows, strict=True))


def outbox_columns(numbered: Numbered) -> tuple[list[Any], ...]:
    rows: list[tuple[Any, ...]] = []
    shards: dict[int, int] = {}
    for placed in numbered.events:
        head = placed.head
        shards[head.execution_id] = head.shard
        rows.append(
            (
                head.shard,
                head.execution_id,
                event_subject(
                    tenant_id=head.tenant_id,
                    organization_id=head.organization_id,
                    execution_id=head.execution_id,
                    shard=head.shard,
                ),
                str(placed.prepared.event_id),
                encode(event_headers(placed.stored, placed.prepared.draft.trace)).decode(),
                placed.stored.body,
            )
        )
    last = numbered.events[-1]
    for index, hint in enumerate(numbered.hints):
        rows.append(
            (
                shards.get(hint.execution_id, last.head.shard),
                hint.execution_id,
                hint.subject,
                f"{last.prepared.event_id}/hint/{index}",
                "{}",
                hint.body,
            )
        )
    return tuple(list(column) for column in zip(*rows, strict=True))


def moved_columns(heads: Sequence[Head]) -> tuple[list[Any], ...]:
    return (
        [head.execution_id for head in heads],
        [head.version for head in heads],
        [head.checksum for head in heads],
        [head.ingest_time for head in heads],
        [head.terminal for head in heads],
    )


def created_columns(numbered: Numbered) -> tuple[list[Any], ...]:
    heads = [head for head, _ in numbered.created]
    return (
        *moved_columns(heads),
        [head.tenant_id for head in heads],
        [head.organization_id for head in heads],
        [head.shard for head in heads],
        [head.parent_execution_id for head in heads],
        [start.start_key or None for _, start in numbered.created],
    )


def result_extract(result: Mapping[str, Any]) -> str:
    """A result as the text of a jsonb column, which has no U+0000: there it shows the replacement character."""
    text = encode(dict(result)).decode()
    return encode(_without_zeros(result)).decode() if "\\u0000" in text else text


def _without_zeros(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {_without_zeros(key): _without_zeros(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_without_zeros(child) for child in value]
    return value


def _text(value: object) -> str | None:
    """An extract of what only NoETL's own events are sure to spell as text."""
    return value if isinstance(value, str) else None


def commit_notice(numbered: Numbered) -> str:
    moved = {placed.head.execution_id: placed for placed in numbered.events}
    if len(moved) > _NOTIFY_LIMIT:
        return "*"
    return " ".join(
        f"{placed.head.shard}:{execution_id}:{placed.stored.stream_version}" for execution_id, placed in moved.items()
    )
