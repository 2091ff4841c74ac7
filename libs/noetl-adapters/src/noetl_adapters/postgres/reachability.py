"""Reads the whole log for a collector, in statements that are each short."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

import asyncpg
from noetl_core.ports.event_log import Scope
from noetl_core.ports.reachability import ScannedEvent, ScannedText

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

PAGE_EVENTS: Final = 2_000
PAGE_PLAYBOOKS: Final = 50


class PostgresLogScan:
    """Port `LogScan`; pages follow the primary key, so nothing that was committed before is passed over."""

    def __init__(self, pool: ConnectionPool, *, page_events: int = PAGE_EVENTS) -> None:
        self._pool = pool
        self._page_events = page_events
        self._sql = load_queries("reachability.sql")

    async def now(self) -> datetime:
        """PostgreSQL's clock, by which events are dated."""
        async with translated(), self._pool.acquire() as connection:
            moment: datetime = await connection.fetchval(self._sql["now"])
        return moment

    async def events(self, scope: Scope | None) -> AsyncIterator[Sequence[ScannedEvent]]:
        """All events, by execution and version."""
        after = (0, 0)
        while True:
            rows = await self._page(after, scope)
            yield [
                ScannedEvent(
                    tenant_id=row["tenant_id"],
                    organization_id=row["organization_id"],
                    execution_id=row["execution_id"],
                    event_type=row["event_type"],
                    ingest_time=row["ingest_time"],
                    body=row["body"],
                )
                for row in rows
                if row["body"] is not None
            ]
            if len(rows) < self._page_events:
                return
            after = (rows[-1]["execution_id"], rows[-1]["stream_version"])

    async def _page(self, after: tuple[int, int], scope: Scope | None) -> list[asyncpg.Record]:
        async with translated(), self._pool.acquire() as connection, connection.transaction(readonly=True):
            await connection.execute(self._sql["by_primary_key"])
            found: list[asyncpg.Record] = await connection.fetch(
                self._sql["events"], *after, self._page_events, *_names(scope)
            )
        return found

    async def playbooks(self, scope: Scope | None) -> AsyncIterator[Sequence[ScannedText]]:
        """All playbooks, by their id."""
        after = 0
        while True:
            async with translated(), self._pool.acquire() as connection:
                rows = await connection.fetch(self._sql["playbooks"], after, PAGE_PLAYBOOKS, *_names(scope))
            yield [ScannedText(row["tenant_id"], row["organization_id"], row["content"]) for row in rows]
            if len(rows) < PAGE_PLAYBOOKS:
                return
            after = rows[-1]["catalog_id"]


def _names(scope: Scope | None) -> tuple[str | None, str | None]:
    return (None, None) if scope is None else (scope.tenant_id, scope.organization_id)
