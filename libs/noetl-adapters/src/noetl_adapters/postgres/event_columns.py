"""Compares columns of stored events with their bytes and with their head: lookups go by columns, proofs by bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any, Final

import asyncpg
from noetl_core.canonical import encode
from noetl_core.envelope import Envelope, parse_body
from noetl_core.errors import NoetlError
from noetl_core.evidence.findings import Finding
from noetl_core.ports.event_columns import ColumnPage, Place
from noetl_core.ports.event_log import Scope

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_rows import text_or_none, without_zeros
from noetl_adapters.postgres.pool import translated

PAGE: Final = 1_000
_QUERY: Final = """
SELECT event.execution_id, event.stream_version, event.body, event.event_id, event.tenant_id, event.organization_id,
       event.event_type, event.aggregate_type, event.aggregate_id, event.idempotency_key, event.content_sha256,
       event.event_time, event.node_name, event.stage_id, event.frame_id, event.command_id, event.loop_id,
       event.epoch_id, event.result::text AS result, stream.version AS head_version
FROM noetl.event AS event
JOIN noetl.stream AS stream USING (execution_id)
WHERE event.execution_id = ANY($1::bigint[]) AND (event.execution_id, event.stream_version) > ($2, $3)
  AND ($4::text IS NULL OR (stream.tenant_id = $4 AND stream.organization_id = $5))
ORDER BY event.execution_id, event.stream_version
LIMIT $6"""


class PostgresEventColumns:
    """Port `EventColumns`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def check_columns(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: Place | None = None
    ) -> ColumnPage:
        """One page; read by key, compared on a thread."""
        whose = (None, None) if scope is None else (scope.tenant_id, scope.organization_id)
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(_QUERY, list(execution_ids), *(after or (0, 0)), *whose, PAGE)
        findings = await asyncio.to_thread(_compare, rows)
        following = (rows[-1][0], rows[-1][1]) if len(rows) == PAGE else None
        return ColumnPage(findings=tuple(findings), following=following)


def _compare(rows: Sequence[asyncpg.Record]) -> list[tuple[int, Finding]]:
    findings: list[tuple[int, Finding]] = []
    for row in rows:
        execution_id = row["execution_id"]
        if not 1 <= row["stream_version"] <= row["head_version"]:
            # Head and events are of one statement: this is none that has just been written, and nobody reads its seal.
            findings.append((execution_id, _finding(row, f"it stands outside of versions 1 to {row['head_version']}")))
        try:
            envelope = parse_body(row["body"])
            told = expected_columns(envelope)
            columns = {name: row[name] for name in told}
            differing = [name for name, value in told.items() if _exact(name, columns[name]) != _exact(name, value)]
        except Exception as exc:
            # Whatever it is: anything may stand in an event that somebody sealed anew, or put where no seal is read.
            reason = exc.message if isinstance(exc, NoetlError) else f"{type(exc).__name__}: {exc}"
            findings.append((execution_id, _finding(row, f"its bytes cannot be read: {reason}")))
            continue
        if differing:
            shown = ", ".join(f"{name} is {columns[name]!r} beside {told[name]!r}" for name in differing)
            findings.append((execution_id, _finding(row, f"{shown} in its bytes", envelope)))
    return findings


def _exact(name: str, value: Any) -> Any:
    """What counts of a column: of JSON not how it is spelt, since the database spells numbers with all their digits."""
    if name != "result" or value is None:
        return value
    return json.loads(value, parse_int=_number, parse_float=_number)


def _number(text: str) -> tuple[Decimal]:
    """Apart from truth values, which would be equal to 1 and 0."""
    return (Decimal(text),)


def expected_columns(envelope: Envelope) -> dict[str, Any]:
    """What the columns of an event are, by its bytes; the result is the text of it."""
    return {
        "execution_id": envelope.execution_id,
        "event_id": envelope.event_id,
        "tenant_id": envelope.tenant_id,
        "organization_id": envelope.organization_id,
        "event_type": envelope.event_type,
        "aggregate_type": envelope.aggregate_type,
        "aggregate_id": envelope.aggregate_id,
        "idempotency_key": envelope.idempotency_key,
        "content_sha256": envelope.content_sha256,
        "event_time": envelope.event_time,
        "node_name": envelope.node_name or None,
        "stage_id": envelope.stage_id or None,
        "frame_id": envelope.frame_id or None,
        "command_id": envelope.command_id or None,
        "loop_id": text_or_none(envelope.meta.get("loop_id")),
        "epoch_id": text_or_none(envelope.meta.get("epoch_id")),
        "result": None if envelope.result is None else encode(without_zeros(envelope.result)).decode(),
    }


def _finding(row: asyncpg.Record, told: str, envelope: Envelope | None = None) -> Finding:
    event_id, event_type = (str(envelope.event_id), envelope.event_type) if envelope is not None else ("", "")
    name = f"event {row['stream_version']}" + (f" ({event_type}, {event_id})" if event_id else "")
    return Finding(
        code="event.column_differs",
        message=f"{name}: {told}",
        stream_version=row["stream_version"],
        event_id=event_id,
        event_type=event_type,
    )
