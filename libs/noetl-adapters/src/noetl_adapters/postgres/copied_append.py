"""A large batch in one round trip or two: after a look without locks, if one is needed, one query does all the rest.

It claims heads, copies events and settles.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

import asyncpg
from noetl_core.append import Head, LogView, Numbered
from noetl_core.timestamps import format_time

from noetl_adapters.postgres.copy_rows import EVENT_COLUMNS, event_rows_binary
from noetl_adapters.postgres.event_rows import commit_notices, outbox_rows
from noetl_adapters.postgres.queries import load_queries

LOCKED_BATCHES: Final = 20
"""That wait for locks after one was overtaken: where replicas compete for a stream, rows are not to be sent in vain."""

_MOST_SESSIONS: Final = 1_000
_NOTHING: Final = "SELECT 0"

_QUERY: Final = (
    "EXECUTE noetl_claim('\\x{}'); "
    f"COPY noetl.event ({', '.join(EVENT_COLUMNS)}) FROM STDIN (FORMAT binary) "
    "WHERE current_setting('noetl.claimed') = 'yes'; "
    "EXECUTE noetl_settle('\\x{}')"
)
"""PostgreSQL runs the statements of one simple query as one transaction, all or nothing.

Only hex digits are put into it. It needs no BEGIN and no COMMIT, each of which would wait for the event loop to come
around, and the rows are on their way before PostgreSQL asks for them.
"""


class CopiedAppend:
    """The verdict is decided in the log, as with `OptimisticAppend`: nothing is written unless heads are as seen."""

    def __init__(self) -> None:
        sql = load_queries("event_log.sql")
        self._statements = (sql["prepare_claim"], sql["prepare_settle"])
        self._prepared: set[int] = set()
        """Sessions, by the ids of their processes, that have the statements. One that only has the id of an earlier
        session says so when they are used."""
        self._locked_batches_left = 0

    def is_contested(self) -> bool:
        """Whether a batch was overtaken lately, so that this one should rather wait for its locks."""
        self._locked_batches_left = max(self._locked_batches_left - 1, 0)
        return self._locked_batches_left > 0

    def overtaken(self) -> None:
        """Somebody was faster between a look and its write. Not so with what was only remembered: that may be hours."""
        self._locked_batches_left = LOCKED_BATCHES

    async def write(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        """Commit the batch; False if a head or an epoch is no longer as it was seen."""
        query = _QUERY.format(_claim(view, numbered).hex(), _settle(numbered).hex())
        rows = event_rows_binary(numbered.events)
        session = connection.get_server_pid()
        if session not in self._prepared:
            await self._prepare(connection, session)
        try:
            settled = await _copy_in(connection, query, rows)
        except asyncpg.InvalidSQLStatementNameError:  # Nothing of a failed query was done: it can be sent again.
            await self._prepare(connection, session)
            settled = await _copy_in(connection, query, rows)
        return settled != _NOTHING

    async def _prepare(self, connection: asyncpg.Connection, session: int) -> None:
        """Planned once a session."""
        for statement in self._statements:
            with suppress(asyncpg.DuplicatePreparedStatementError):
                await connection.execute(statement)
        if len(self._prepared) >= _MOST_SESSIONS:  # most of them ended long ago
            self._prepared.clear()
        self._prepared.add(session)


async def _copy_in(connection: asyncpg.Connection, query: str, rows: bytearray) -> str:
    """How many rows the last statement had, in PostgreSQL's words."""
    # What `copy_to_table` calls with a query that it has made itself. The driver skips what it does not expect to
    # hear during a copy, which are the answers to the other statements, and ends when the server is ready again.
    told: str = await connection._copy_in(query, rows, None)
    return told


def _claim(view: LogView, numbered: Numbered) -> bytes:
    return _spelt(
        {
            "seen": [
                {"execution_id": head.execution_id, "version": head.version, "checksum": head.checksum}
                for head in (view.heads[moved.execution_id] for moved in numbered.heads)
            ],
            "epochs": [
                {"role": role, "shard_id": shard, "epoch": epoch} for (role, shard), epoch in view.epochs.items()
            ],
        }
    )


def _settle(numbered: Numbered) -> bytes:
    return _spelt(
        {
            "outbox": [(*row[:7], None if row[7] is None else row[7].hex()) for row in outbox_rows(numbered)],
            "moved": [_moved(head) for head in numbered.heads],
            "created": [
                {
                    **_moved(head),
                    "tenant_id": head.tenant_id,
                    "organization_id": head.organization_id,
                    "shard": head.shard,
                    "parent_execution_id": head.parent_execution_id,
                    "start_key": start.start_key or None,
                }
                for head, start in numbered.created
            ],
            "notices": commit_notices(numbered),
        }
    )


def _moved(head: Head) -> dict[str, Any]:
    return {
        "execution_id": head.execution_id,
        "version": head.version,
        "checksum": head.checksum,
        "ingest_time": None if head.ingest_time is None else format_time(head.ingest_time),
        "terminal": head.terminal,
    }


def _spelt(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
