"""A client process that inserts rows of the log by itself, as they are, with nothing around: the yardstick."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from noetl_adapters.postgres.queries import load_queries
from noetl_core.ids import Snowflake

from benchmarks.clients import Timing, begin_together

_COLUMNS = (
    "execution_id, stream_version, event_id, tenant_id, organization_id, event_type, aggregate_type, aggregate_id, "
    "aggregate_version, idempotency_key, content_sha256, event_time, ingest_time, node_name, stage_id, frame_id, "
    "command_id, loop_id, epoch_id, result, prev_checksum, checksum, body"
)
_EVENT_ID = 2
_INSERT = load_queries("event_log.sql")["insert_events"]
"""The statement that the log itself uses: a column of arrays each, so a batch is one round trip."""

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
