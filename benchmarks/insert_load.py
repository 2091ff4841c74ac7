"""A client process that inserts rows of the log by itself, as they are, with nothing around: the yardstick."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from noetl_core.ids import Snowflake

from benchmarks.clients import Timing, begin_together

_TYPES = {
    "execution_id": "bigint",
    "stream_version": "bigint",
    "event_id": "bigint",
    "tenant_id": "text",
    "organization_id": "text",
    "event_type": "text",
    "aggregate_type": "text",
    "aggregate_id": "text",
    "aggregate_version": "bigint",
    "idempotency_key": "text",
    "content_sha256": "text",
    "event_time": "timestamptz",
    "ingest_time": "timestamptz",
    "node_name": "text",
    "stage_id": "text",
    "frame_id": "text",
    "command_id": "text",
    "loop_id": "text",
    "epoch_id": "text",
    "result": "jsonb",
    "prev_checksum": "text",
    "checksum": "text",
    "body": "bytea",
}
_COLUMNS = ", ".join(_TYPES)
_EVENT_ID = list(_TYPES).index("event_id")
_ARRAYS = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(_TYPES.values(), start=1))
_INSERT = f"INSERT INTO noetl.event ({_COLUMNS}) SELECT * FROM unnest({_ARRAYS})"  # noqa: S608 - only our own names
"""A column of arrays each, so a batch is one round trip, whatever its size."""

Columns = list[list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertJob:
    """Which rows to take, under which new executions to insert them, and with how many connections."""

    dsn: str = field(repr=False)
    new_ids: Mapping[int, int]
    """New execution ids by the ids of the executions whose rows are taken."""
    part: int
    parts: int
    """Several processes share the rows of a single execution."""
    node: int
    rows_per_insert: int
    connections: int


def insert(job: InsertJob) -> Timing:
    """Runs in a process of its own."""
    return asyncio.run(_insert_all(job))


async def _insert_all(job: InsertJob) -> Timing:
    connections = [await asyncpg.connect(job.dsn) for _ in range(job.connections)]
    try:
        batches = deque(await _batches(connections[0], job))
        rows = sum(len(columns[0]) for columns in batches)
        statements = [await connection.prepare(_INSERT) for connection in connections]

        async def writer(statement: Any) -> None:
            while batches:
                await statement.fetch(*batches.popleft())

        begin_together()
        begun = time.monotonic()
        await asyncio.gather(*(writer(statement) for statement in statements))
        ended = time.monotonic()
    finally:
        for connection in connections:
            await connection.close()
    return Timing(events=rows, begun=begun, ended=ended)


async def _batches(connection: asyncpg.Connection, job: InsertJob) -> list[Columns]:
    """The rows that were appended, less the first of each stream, as arrays in the order of their versions."""
    query = (
        f"SELECT {_COLUMNS} FROM noetl.event "  # noqa: S608 - only our own names
        "WHERE execution_id = $1 AND stream_version > 1 AND stream_version % $2 = $3 ORDER BY stream_version"
    )
    ids = Snowflake(job.node)
    batches: list[tuple[int, Columns]] = []
    for old, new in job.new_ids.items():
        rows: Sequence[asyncpg.Record] = await connection.fetch(query, old, job.parts, job.part)
        for first in range(0, len(rows), job.rows_per_insert):
            columns = [list(column) for column in zip(*rows[first : first + job.rows_per_insert], strict=True)]
            columns[0] = [new] * len(columns[0])
            columns[_EVENT_ID] = [ids.next(time.time_ns() // 1_000_000) for _ in columns[0]]
            batches.append((first, columns))
    batches.sort(key=lambda batch: batch[0])  # from one execution to the next, as they were appended
    return [columns for _, columns in batches]
