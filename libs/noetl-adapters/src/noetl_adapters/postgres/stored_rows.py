"""Pages of rows as they are stored: one short transaction each, so that a page is of one moment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import asyncpg
from noetl_core.canonical import encode
from noetl_core.errors import NoetlError
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import ExecutionColumns, RowPage, RowPlace, StoredRow
from noetl_core.surfaces.shapes import SHAPES, UNREADABLE, Surface

from noetl_adapters.postgres.surface_tables import EXECUTION_ROWS, LISTINGS, execution_row_of, listed_row_of

MAX_PAGE_BYTES: Final = 2 * 1024 * 1024
_VERSIONS: Final = """
SELECT execution_id, stream_version, CASE WHEN upcasters_version = stream_version THEN upcasters END,
       shard, CASE WHEN next_deadline IS NOT NULL
                   THEN greatest(least(next_deadline, '9999-12-31 00:00:00+00'), '0001-01-02 00:00:00+00') END
FROM noetl.execution
WHERE execution_id = ANY($1::bigint[]) AND ($2::text IS NULL OR (tenant_id = $2 AND organization_id = $3))"""


async def read_page(
    connection: asyncpg.Connection,
    scope: Scope | None,
    execution_ids: Collection[int],
    *,
    after: RowPlace | None,
    limit: int,
) -> RowPage:
    """At most seven statements, however many executions there are.

    Of a deadline that no calendar has the nearest one that it has is told: it is another one than the log gives.
    """
    whose = (None, None) if scope is None else (scope.tenant_id, scope.organization_id)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        found = await connection.fetch(_VERSIONS, list(execution_ids), *whose)
        versions: dict[int, int] = {row[0]: row[1] for row in found}
        page = RowPage(
            versions=versions,
            rows=(),
            following=None,
            upcasters={row[0]: row[2] for row in found if row[2] is not None},
            columns={row[0]: ExecutionColumns(shard=row[3], next_deadline=row[4]) for row in found},
        )
        rows: list[StoredRow] = []
        left = MAX_PAGE_BYTES
        for surface in _from(after):
            place = after if after is not None and after.surface is surface else None
            wanted = limit - len(rows) + 1
            for record in await _fetch(connection, surface, list(versions), place, wanted):
                if rows and (len(rows) == limit or left <= 0):
                    last = rows[-1]
                    place = RowPlace(surface=last.surface, execution_id=last.execution_id, key=last.key)
                    return replace(page, rows=tuple(rows), following=place)
                data = _data(surface, record)
                rows.append(StoredRow(execution_id=record[0], surface=surface, key=record[1], data=data))
                left -= len(data)
    return replace(page, rows=tuple(rows))


def _data(surface: Surface, record: asyncpg.Record) -> bytes:
    try:
        return encode(execution_row_of(record) if surface is Surface.EXECUTION else listed_row_of(surface, record))
    except Exception as exc:
        # Whatever it is: a column may hold anything that somebody wrote into it, and one row must not hide the others.
        reason = exc.message if isinstance(exc, NoetlError) else f"{type(exc).__name__}: {exc}"
        identity = {name: str(record[name]) for name in (*SHAPES[surface].identity, "execution_id")}
        return encode({**identity, UNREADABLE: reason})


def _from(after: RowPlace | None) -> list[Surface]:
    surfaces = list(Surface)
    return surfaces if after is None else surfaces[surfaces.index(after.surface) :]


async def _fetch(
    connection: asyncpg.Connection, surface: Surface, execution_ids: list[int], place: RowPlace | None, limit: int
) -> list[asyncpg.Record]:
    execution_id, key = (place.execution_id, place.key) if place is not None else (0, "")
    own = surface is Surface.EXECUTION
    statement = EXECUTION_ROWS if own else LISTINGS[surface]
    behind = (execution_id,) if own else (execution_id, key)
    rows: list[asyncpg.Record] = await connection.fetch(statement, execution_ids, *behind, limit)
    return rows
