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
from noetl_core.ports.bus import Message
from noetl_core.ports.outbox import Backlog, OutboxRow
from noetl_core.values import maker, new_tuple

from noetl_adapters.postgres.arrays import numbers
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import SESSION_SETTINGS, read_log_branch, translated
from noetl_adapters.postgres.queries import load_queries

COUNTED_ROWS = 100_000
"""How far a backlog is counted."""

MOST_PASSED_OVER = 64
"""Ids that are deleted with the next taking: it compares each of its rows with each of them."""

_DRAIN_SETTINGS = {
    # A delete that a crash undoes is a row that is published twice, which everybody can stand;
    # waiting for the disk at each batch would cost more than publishing it.
    "synchronous_commit": "off",
    # A plan made while the outbox was empty would read and sort all of it when it is long.
    "enable_seqscan": "off",
}


def open_outbox_pool(dsn: str, *, application_name: str, max_size: int = 2) -> ConnectionPool:
    """Connections for draining; they are made when needed, so that a process can start before its database."""

    async def connect() -> asyncpg.Connection:
        connection = await asyncpg.connect(
            dsn,
            timeout=5.0,
            command_timeout=5.0,
            server_settings={**SESSION_SETTINGS, **_DRAIN_SETTINGS, "application_name": application_name},
        )
        try:
            await _mark_log_branch(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    return ConnectionPool(connect, max_size=max_size)


async def _mark_log_branch(connection: asyncpg.Connection) -> None:
    """Once for each connection: no server changes its branch of the log without ending them all."""
    await connection.execute(load_queries("outbox.sql")["mark_log_branch"], await read_log_branch(connection))


class PostgresOutbox:
    """Reads and deletes rows; whoever calls has leased their shards."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("outbox.sql")

    async def take(
        self, shards: Collection[int], *, limit: int, published: Sequence[int] = ()
    ) -> tuple[OutboxRow, ...]:
        """The first messages of these shards, in outbox order; of whole rows, so there may be a few more."""
        if not shards or len(published) > MOST_PASSED_OVER:
            await self.delete(published)
            published = ()
        if not shards:
            return ()
        statement = self._sql["delete_and_take" if published else "take"]
        async with translated():
            rows = await self._pool.fetch(statement, _shard_numbers(frozenset(shards)), limit, *_ids(published))
        return tuple(one for _, group in groupby(rows, key=itemgetter(0)) for one in _messages(list(group)))

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        """They have been published."""
        if outbox_ids:
            async with translated():
                await self._pool.execute(self._sql["delete"], *_ids(outbox_ids))

    async def backlog(self) -> Backlog:
        """What waits, counted up to `COUNTED_ROWS`."""
        async with translated():
            (row,) = await self._pool.fetch(self._sql["backlog"], COUNTED_ROWS)
        return Backlog(rows=row["waiting"], oldest_age_seconds=row["oldest_age_seconds"])


def _ids(outbox_ids: Sequence[int]) -> tuple[str, ...]:
    return (numbers(outbox_ids),) if outbox_ids else ()


@lru_cache(maxsize=16)
def _shard_numbers(shards: frozenset[int]) -> str:
    """The same as long as no lease changes hands."""
    return numbers(shards)


def _messages(rows: Sequence[asyncpg.Record]) -> Iterator[OutboxRow]:
    """Of one row of the outbox: what is written out there, or the events that it names."""
    first = rows[0]
    marks = {LOG_BRANCH: first["log_branch"]} if first["log_branch"] else {}
    for message in [_written_out(first, marks)] if first["event_id"] is None else _of_events(rows, marks):
        yield _make_row(first["outbox_id"], first["shard"], first["execution_id"], message, first["age_seconds"])


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
    # The columns from the body on are what an event has, in its order.
    for run in message_runs([new_tuple(StoredEvent, row[_EVENT_COLUMNS]) for row in rows]):
        body, headers = pack_events(run, trace_of(run[0].body))
        name = str(rows[place]["event_id"])
        # Under a name of its own, as an earlier release may have published its first event alone.
        message_id = name if len(run) == 1 else f"{name}+{len(run)}"
        yield _make_message(subject, message_id, body, {**headers, **marks})
        place += len(run)


_EVENT_COLUMNS = slice(7, 13)
_make_row = maker(OutboxRow)
_make_message = maker(Message)


@lru_cache(maxsize=4096)
def _subject(tenant_id: str, organization_id: str, execution_id: int, shard: int) -> str:
    """The events of a stream share it."""
    return event_subject(tenant_id=tenant_id, organization_id=organization_id, execution_id=execution_id, shard=shard)
