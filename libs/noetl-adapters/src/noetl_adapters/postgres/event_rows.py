"""A numbered batch as column arrays: what the log, the heads and the outbox get in one statement each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from noetl_core.append import Head, Hint, Numbered, PlacedEvent
from noetl_core.canonical import encode

_NOTIFY_LIMIT = 100
"""A notice has at most 8,000 bytes."""

_BACKSLASH = ord("\\")
"""Looked for first: one byte is found soon."""

EVENTS_PER_ROW = 100
"""That a row of the outbox names: publishers take whole rows."""

OutboxRow = tuple[int, int, int | None, int | None, str | None, str | None, str | None, bytes | None]


def event_columns(numbered: Numbered) -> tuple[list[Any], ...]:
    """Arrays for `insert_events`."""
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
                text_or_none(meta.get("loop_id")),
                text_or_none(meta.get("epoch_id")),
                None if prepared.result is None else result_extract(prepared.result, draft.result).decode(),
                stored.prev_checksum,
                stored.checksum,
                stored.body,
            )
        )
    return tuple(list(column) for column in zip(*rows, strict=True))


def outbox_columns(numbered: Numbered) -> tuple[list[Any], ...]:
    """The rows of the outbox as arrays."""
    return tuple(list(column) for column in zip(*outbox_rows(numbered), strict=True))


def outbox_rows(numbered: Numbered) -> list[OutboxRow]:
    """Ranges of events, each stream's in the order of their places, then hints."""
    rows: list[OutboxRow] = [
        (shard, execution_id, low, min(low + EVENTS_PER_ROW - 1, last), None, None, None, None)
        for execution_id, (shard, first, last) in _spans(numbered.events).items()
        for low in range(first, last + 1, EVENTS_PER_ROW)
    ]
    rows.extend(_hint_rows(numbered.events, numbered.hints))
    return rows


def _spans(events: Sequence[PlacedEvent]) -> dict[int, tuple[int, int, int]]:
    """Shard, first and last version of what each stream gets; in between nothing is missing."""
    last = {event[2].execution_id: event for event in events}
    first = {event[2].execution_id: event for event in reversed(events)}
    return {
        execution_id: (placed.head.shard, first[execution_id].stored.stream_version, placed.stored.stream_version)
        for execution_id, placed in last.items()
    }


def _hint_rows(events: Sequence[PlacedEvent], hints: Sequence[Hint]) -> Iterator[OutboxRow]:
    """Hints follow the events of their execution; their ids derive from an event, so that they are unique."""
    if not hints:
        return
    shards = {placed.head.execution_id: placed.head.shard for placed in events}
    last = events[-1]
    for index, hint in enumerate(hints):
        yield (
            shards.get(hint.execution_id, last.head.shard),
            hint.execution_id,
            None,
            None,
            hint.subject,
            hint.message_id or f"{last.prepared.event_id}/hint/{index}",
            "{}",
            hint.body,
        )


def moved_columns(heads: Sequence[Head]) -> tuple[list[Any], ...]:
    """Arrays for `finish`."""
    return (
        [head.execution_id for head in heads],
        [head.version for head in heads],
        [head.checksum for head in heads],
        [head.ingest_time for head in heads],
        [head.terminal for head in heads],
    )


def created_columns(numbered: Numbered) -> tuple[list[Any], ...]:
    """Arrays for `insert_heads`."""
    heads = [head for head, _ in numbered.created]
    return (
        *moved_columns(heads),
        [head.tenant_id for head in heads],
        [head.organization_id for head in heads],
        [head.shard for head in heads],
        [head.parent_execution_id for head in heads],
        [start.start_key or None for _, start in numbered.created],
    )


def commit_notices(numbered: Numbered) -> list[str]:
    """Which streams moved to which versions, in as many notices as it takes to name all of them."""
    moved = {placed.head.execution_id: placed for placed in numbered.events}
    items = [
        f"{placed.head.shard}:{execution_id}:{placed.stored.stream_version}" for execution_id, placed in moved.items()
    ]
    return [" ".join(items[first : first + _NOTIFY_LIMIT]) for first in range(0, len(items), _NOTIFY_LIMIT)]


def result_extract(spelt: bytes, result: Mapping[str, Any] | None) -> bytes:
    """A result as the text of a jsonb column, which has no U+0000: there it shows the replacement character."""
    return encode(without_zeros(result)) if _BACKSLASH in spelt and b"\\u0000" in spelt else spelt


def text_or_none(value: object) -> str | None:
    """An extract of what only NoETL's own events are sure to spell as text."""
    return value if isinstance(value, str) and value else None


def without_zeros(value: Any) -> Any:
    """As jsonb can hold it."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {without_zeros(key): without_zeros(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [without_zeros(child) for child in value]
    return value
