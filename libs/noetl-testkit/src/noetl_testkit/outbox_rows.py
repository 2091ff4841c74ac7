"""Puts events into an outbox as an append does: the same bytes, headers, order of ids and notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg
from noetl_contracts.messages import event_headers
from noetl_contracts.subjects import event_subject
from noetl_core.canonical import encode
from noetl_core.envelope import Draft, StoredEvent, StreamSpelling, chain_checksum
from noetl_core.sharding import shard_of

START = datetime(2026, 1, 1, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

_INSERT = """
INSERT INTO noetl.outbox (shard, execution_id, subject, message_id, headers, body)
SELECT shard, execution_id, subject, message_id, headers, body
FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[], $6::bytea[])
     WITH ORDINALITY AS row (shard, execution_id, subject, message_id, headers, body, place)
ORDER BY place
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """An event with the facts that become columns of its outbox row."""

    execution_id: int
    event_id: int
    tenant_id: str
    stored: StoredEvent


def history(execution_id: int, length: int, *, tenant_id: str = "default") -> list[OutboxEvent]:
    """Events 1…length of an execution, chained as the log chains them."""
    events: list[OutboxEvent] = []
    checksum = ""
    spelling = StreamSpelling(
        tenant_id=tenant_id, organization_id="default", execution_id=execution_id, producer="test"
    )
    for version in range(1, length + 1):
        event_id = execution_id * 1_000_000 + version
        draft = Draft(event_type="test.happened", idempotency_key=f"test/{version}", trace=TRACE)
        body = spelling.spell(draft, event_id, START).body
        stored = StoredEvent(
            body=body,
            stream_version=version,
            aggregate_version=version,
            ingest_time=START,
            prev_checksum=checksum,
            checksum=chain_checksum(
                prev_checksum=checksum,
                stream_version=version,
                aggregate_version=version,
                ingest_time=START,
                body=body,
            ),
        )
        checksum = stored.checksum
        events.append(OutboxEvent(execution_id=execution_id, event_id=event_id, tenant_id=tenant_id, stored=stored))
    return events


async def write_outbox(connection: asyncpg.Connection, events: Sequence[OutboxEvent], *, shard_count: int = 64) -> None:
    """One transaction, with its notice."""
    rows = [_columns(event, shard_count) for event in events]
    moved = {event.execution_id: event for event in events}
    notice = " ".join(
        f"{shard_of(execution_id, shard_count)}:{execution_id}:{event.stored.stream_version}"
        for execution_id, event in moved.items()
    )
    async with connection.transaction():
        await connection.execute(_INSERT, *(list(column) for column in zip(*rows, strict=True)))
        await connection.execute("SELECT pg_notify('noetl_commit', $1)", notice if len(moved) <= 100 else "*")


def _columns(event: OutboxEvent, shard_count: int) -> tuple[object, ...]:
    shard = shard_of(event.execution_id, shard_count)
    subject = event_subject(
        tenant_id=event.tenant_id, organization_id="default", execution_id=event.execution_id, shard=shard
    )
    headers = encode(event_headers(event.stored, TRACE)).decode()
    return shard, event.execution_id, subject, str(event.event_id), headers, event.stored.body
