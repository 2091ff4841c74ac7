"""Events by their identity, in PostgreSQL."""

from __future__ import annotations

import asyncpg
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NotFound
from noetl_core.ports.event_finder import EVENT_NOT_FOUND
from noetl_core.ports.event_log import Scope

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresEventFinder:
    """Ports `EventFinder` and `FrameEvents`; an index lookup in each partition."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("event_finder.sql")

    async def find(self, scope: Scope | None, event_id: int) -> StoredEvent:
        """The event of this organization."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["find"], event_id)
        found = _visible(row, scope)
        if found is None:
            raise NotFound("event", event_id, code=EVENT_NOT_FOUND)
        return found

    async def last_of_frame(self, scope: Scope | None, execution_id: int, frame_id: str) -> StoredEvent | None:
        """The last event about a frame."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["last_of_frame"], execution_id, frame_id)
        return _visible(row, scope)


def _visible(row: asyncpg.Record | None, scope: Scope | None) -> StoredEvent | None:
    """The event, if it is of this organization."""
    if row is None:
        return None
    owner = Scope(tenant_id=row["tenant_id"], organization_id=row["organization_id"])
    if scope is not None and owner != scope:
        return None
    return StoredEvent(
        body=row["body"],
        stream_version=row["stream_version"],
        aggregate_version=row["aggregate_version"],
        ingest_time=row["ingest_time"],
        prev_checksum=row["prev_checksum"],
        checksum=row["checksum"],
    )
