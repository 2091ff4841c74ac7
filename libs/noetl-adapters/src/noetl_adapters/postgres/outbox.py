"""The outbox in PostgreSQL: what was committed is read in order, from the log, and taken off once it is published."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import asyncpg
from noetl_contracts.messages import message_runs, pack_events
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
        return tuple(one for _, group in groupby(rows, key=itemgetter("outbox_id")) for one in _messages(list(group)))

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        """They have been published."""
        async with translated():
            await self._pool.execute(self._sql["delete"], list(outbox_ids))

    async def backlog(self) -> Backlog:
        """What waits, counted up to `COUNTED_ROWS`."""
        async with translated():
            row = await self._pool.fetchrow(self._sql["backlog"], COUNTED_ROWS)
        return Backlog(rows=row["waiting"], oldest_age_seconds=row["oldest_age_seconds"])


def _messages(rows: Sequence[asyncpg.Record]) -> Iterator[OutboxRow]:
    """Of one row of the outbox: what is written out there, or the events that it names."""
    first = rows[0]
    marks = {LOG_BRANCH: first["log_branch"]} if first["log_branch"] else {}
    for message in [_written_out(first, marks)] if first["event_id"] is None else _of_events(rows, marks):
        yield OutboxRow(
            outbox_id=first["outbox_id"],
            shard=first["shard"],
            execution_id=first["execution_id"],
            message=message,
            age_seconds=first["age_seconds"],
        )


def _written_out(row: asyncpg.Record, marks: Mapping[str, str]) -> Message:
    return Message(
        subject=row["subject"],
        message_id=row["message_id"],
        body=row["body"],
        headers={**json.loads(row["headers"]), **marks},
    )


def _of_events(rows: Sequence[asyncpg.Record], marks: Mapping[str, str]) -> Iterator[Message]:
    first = rows[0]
    subject = _subject(first["tenant_id"], first["organization_id"], first["execution_id"], first["shard"])
    place = 0
    for run in message_runs(map(_stored, rows)):
        body, headers = pack_events(run, trace_of(run[0].body))
        name = str(rows[place]["event_id"])
        # Under a name of its own, as an earlier release may have published its first event alone.
        message_id = name if len(run) == 1 else f"{name}+{len(run)}"
        yield Message(subject=subject, message_id=message_id, body=body, headers={**headers, **marks})
        place += len(run)


def _stored(row: asyncpg.Record) -> StoredEvent:
    return StoredEvent(
        body=row["body"],
        stream_version=row["stream_version"],
        aggregate_version=row["aggregate_version"],
        ingest_time=row["ingest_time"],
        prev_checksum=row["prev_checksum"],
        checksum=row["checksum"],
    )


@lru_cache(maxsize=4096)
def _subject(tenant_id: str, organization_id: str, execution_id: int, shard: int) -> str:
    """The events of a stream share it."""
    return event_subject(tenant_id=tenant_id, organization_id=organization_id, execution_id=execution_id, shard=shard)
