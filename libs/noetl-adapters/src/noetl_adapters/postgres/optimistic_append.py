"""A small batch in two round trips: look without locks, decide, and write what was decided if nothing has moved."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from noetl_core.append import Head, KnownKey, LogView, Numbered, PreparedRequest
from noetl_core.envelope import StoredEvent

from noetl_adapters.postgres.asked import Asked, as_columns
from noetl_adapters.postgres.event_rows import (
    commit_notices,
    created_columns,
    event_columns,
    moved_columns,
    outbox_columns,
)
from noetl_adapters.postgres.queries import load_queries
from noetl_adapters.postgres.remembered_streams import ServerClock


class OptimisticAppend:
    """The verdict is still decided in the log: `write` locks the heads, and does nothing unless they are as seen.

    What was refused or known before stays so whatever happens meanwhile: the snapshot of the look is a moment between
    the call and its answer, and such a verdict writes nothing.
    """

    def __init__(self) -> None:
        self._sql = load_queries("event_log.sql")
        self.clock = ServerClock()

    async def look(self, connection: asyncpg.Connection, requests: Sequence[PreparedRequest]) -> LogView | None:
        """One snapshot of everything that the verdict depends on; None where a start key is taken."""
        asked = Asked(requests)
        asked_at = self.clock.monotonic()
        rows = await connection.fetch(
            self._sql["look"],
            list(asked.heads),
            *as_columns(list(asked.fences), 2),
            *as_columns(list(asked.aggregates), 2),
            *asked.key_columns(),
            *as_columns(asked.starts, 3),
        )
        view = _view(rows)
        if view is not None:
            self.clock.hear(view.now, asked_at=asked_at)
        return view

    async def write(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        """Commit the batch in one statement; False if a head or an epoch is no longer as it was seen."""
        seen = [view.heads[head.execution_id] for head in numbered.heads]
        epochs = [(role, shard, epoch) for (role, shard), epoch in view.epochs.items()]
        asked_at = self.clock.monotonic()
        told = await connection.fetch(
            self._sql["write"],
            *event_columns(numbered),
            *outbox_columns(numbered),
            [head.execution_id for head in seen],
            [head.version for head in seen],
            *as_columns(epochs, 3),
            *moved_columns(numbered.heads),
            *created_columns(numbered),
            commit_notices(numbered),
            [head.checksum for head in seen],
        )
        if not told:
            return False
        self.clock.hear(told[0]["now"], asked_at=asked_at)
        return True


def _view(rows: Sequence[asyncpg.Record]) -> LogView | None:
    heads: dict[int, Head] = {}
    epochs: dict[tuple[str, int], int] = {}
    aggregates: dict[tuple[int, str], int] = {}
    keys: dict[tuple[int, str], KnownKey] = {}
    now = None
    for kind, place, text1, text2, text3, text4, number1, number2, number3, moment, terminal, body in rows:
        if kind == "t":
            now = moment
        elif kind == "h":
            heads[place] = Head(place, text1, text2, number1, number2, text3, moment, terminal, number3)
        elif kind == "e":
            epochs[(text1, number1)] = number2
        elif kind == "a":
            aggregates[(place, text1)] = number1
        elif kind == "k":
            stored = StoredEvent(
                stream_version=number2,
                aggregate_version=number3,
                ingest_time=moment,
                prev_checksum=text3,
                checksum=text4,
                body=body,
            )
            keys[(place, text1)] = KnownKey(text2, number1, stored)
        else:
            return None
    if now is None:
        raise AssertionError("a look always tells the time")
    return LogView(now=now, heads=heads, keys=keys, aggregate_versions=aggregates, epochs=epochs)
