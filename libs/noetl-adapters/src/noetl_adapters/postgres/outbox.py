"""The outbox in PostgreSQL: what was committed is read in order, from the log, and taken off once it is published."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

import asyncpg
from noetl_contracts.messages import event_headers
from noetl_contracts.subjects import LOG_BRANCH, event_subject
from noetl_core.envelope import StoredEvent, trace_of
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Message
from noetl_core.ports.outbox import Backlog, OutboxRow

from noetl_adapters.postgres.pool import SESSION_SETTINGS, translated
from noetl_adapters.postgres.queries import load_queries

COUNTED_ROWS = 100_000
"""How far a backlog is counted."""

_DRAIN_SETTINGS = {
    # A delete that a crash undoes is a row that is published twice, which everybody can stand;
    # waiting for the disk at each batch would cost more than publishing it.
    "synchronous_commit": "off",
    # A plan made while the outbox was empty would read and sort all of it when it is long.
    "enable_seqscan": "off",
}


async def open_outbox_pool(dsn: str, *, application_name: str, max_size: int = 2) -> asyncpg.Pool:
    """Connections for draining; they are made when needed, so that a process can start before its database."""
    async with translated():
        return await asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=max_size,
            timeout=5.0,
            command_timeout=5.0,
            # Nothing here changes a session, and resetting it would be one more round trip for each query.
            reset=_leave_as_is,
            init=_mark_log_branch,
            server_settings={**SESSION_SETTINGS, **_DRAIN_SETTINGS, "application_name": application_name},
        )


async def _mark_log_branch(connection: asyncpg.Connection) -> None:
    """Once for each connection: no server changes its branch of the log without ending them all."""
    try:
        await connection.execute(load_queries("outbox.sql")["mark_log_branch"])
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError) as exc:
        raise Unavailable("the database has not been set up yet, or is of an earlier release") from exc


async def _leave_as_is(connection: asyncpg.Connection) -> None:
    return None


class PostgresOutbox:
    """Reads and deletes rows; whoever calls has leased their shards."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("outbox.sql")

    async def take(self, shards: Collection[int], *, limit: int) -> tuple[OutboxRow, ...]:
        """The first messages of these shards, in outbox order; of whole rows, so there may be a few more."""
        if not shards:
            return ()
        async with translated():
            rows = await self._pool.fetch(self._sql["take"], list(shards), limit)
        return tuple(map(_row, rows))

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        """They have been published."""
        async with translated():
            await self._pool.execute(self._sql["delete"], list(outbox_ids))

    async def backlog(self) -> Backlog:
        """What waits, counted up to `COUNTED_ROWS`."""
        async with translated():
            row = await self._pool.fetchrow(self._sql["backlog"], COUNTED_ROWS)
        return Backlog(rows=row["waiting"], oldest_age_seconds=row["oldest_age_seconds"])


def _row(row: asyncpg.Record) -> OutboxRow:
    message = _written_out(row) if row["event_id"] is None else _event(row)
    if row["log_branch"]:
        message = replace(message, headers={**message.headers, LOG_BRANCH: row["log_branch"]})
    return OutboxRow(
        outbox_id=row["outbox_id"],
        shard=row["shard"],
        execution_id=row["execution_id"],
        message=message,
        age_seconds=row["age_seconds"],
    )


def _written_out(row: asyncpg.Record) -> Message:
    return Message(
        subject=row["subject"],
        message_id=row["message_id"],
        body=row["body"],
        headers=json.loads(row["headers"]),
    )


def _event(row: asyncpg.Record) -> Message:
    stored = StoredEvent(
        body=row["body"],
        stream_version=row["stream_version"],
        aggregate_version=row["aggregate_version"],
        ingest_time=row["ingest_time"],
        prev_checksum=row["prev_checksum"],
        checksum=row["checksum"],
    )
    subject = _subject(row["tenant_id"], row["organization_id"], row["execution_id"], row["shard"])
    headers = event_headers(stored, trace_of(stored.body))
    return Message(subject=subject, message_id=str(row["event_id"]), body=stored.body, headers=headers)


@lru_cache(maxsize=4096)
def _subject(tenant_id: str, organization_id: str, execution_id: int, shard: int) -> str:
    """The events of a stream share it."""
    return event_subject(tenant_id=tenant_id, organization_id=organization_id, execution_id=execution_id, shard=shard)
