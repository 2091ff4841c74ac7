"""The catalog in PostgreSQL: versions without gaps, decided by a unique index and never by a read before a write."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from noetl_core.errors import Conflict, InvalidInput, NotFound
from noetl_core.ids import parse_id
from noetl_core.ports.catalog import CatalogEntry, CatalogPage, NewVersion, PlaybookSource, Registered
from noetl_core.ports.event_log import Scope

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

_ATTEMPTS = 100
_NEWEST = 2**31 - 1


class PostgresCatalog:
    """Port `CatalogStore`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("catalog.sql")

    async def add(self, scope: Scope, version: NewVersion) -> Registered:
        """The next version of its path, unless the newest one has this content."""
        where = (scope.tenant_id, scope.organization_id)
        async with translated(), self._pool.acquire() as connection:
            for _ in range(_ATTEMPTS):
                row = await connection.fetchrow(
                    self._sql["add_version"],
                    parse_id(version.catalog_id, what="catalog_id"),
                    *where,
                    version.path,
                    version.name,
                    version.sha256,
                    version.content,
                    version.created_by,
                )
                if row is not None:
                    return Registered(entry=_entry(row), created=True)
                row = await connection.fetchrow(self._sql["newest"], *where, version.path)
                if row is not None and row["sha256"] == version.sha256:
                    return Registered(entry=_entry(row), created=False)
        raise Conflict(f"others register {version.path!r} faster than we can")

    async def get(
        self, scope: Scope | None, *, path: str = "", version: int = 0, catalog_id: str = ""
    ) -> PlaybookSource:
        """One version, the newest if none is named."""
        tenant, organization = (scope.tenant_id, scope.organization_id) if scope else (None, None)
        async with translated(), self._pool.acquire() as connection:
            if catalog_id:
                number = parse_id(catalog_id, what="catalog_id")
                row = await connection.fetchrow(self._sql["by_id"], number, tenant, organization)
            elif scope is None:
                raise InvalidInput("without a scope a playbook is asked for by its catalog_id")
            elif version:
                row = await connection.fetchrow(self._sql["version"], tenant, organization, path, version)
            else:
                row = await connection.fetchrow(self._sql["newest"], tenant, organization, path)
        if row is None:
            name = catalog_id or (f"{path} version {version}" if version else path)
            raise NotFound("playbook", name, code="catalog.not_found")
        return PlaybookSource(entry=_entry(row), content=row["content"])

    async def list(self, scope: Scope, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Newest version of each playbook; the token is the last path of the page before."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(
                self._sql["list_newest"], scope.tenant_id, scope.organization_id, page_token, page_size + 1
            )
        return _page(rows, page_size, continued_by="path")

    async def versions(self, scope: Scope, path: str, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Versions of one playbook; the token is the last version of the page before."""
        below = min(parse_id(page_token, what="page_token"), _NEWEST) if page_token else _NEWEST
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(
                self._sql["list_versions"],
                scope.tenant_id,
                scope.organization_id,
                path,
                below,
                page_size + 1,
            )
        if not rows and not page_token:
            raise NotFound("playbook", path, code="catalog.not_found")
        return _page(rows, page_size, continued_by="version")


def _page(rows: Sequence[asyncpg.Record], page_size: int, *, continued_by: str) -> CatalogPage:
    more = len(rows) > page_size
    shown = rows[:page_size]
    return CatalogPage(
        entries=tuple(_entry(row) for row in shown),
        next_page_token=str(shown[-1][continued_by]) if more else "",
    )


def _entry(row: asyncpg.Record) -> CatalogEntry:
    return CatalogEntry(
        catalog_id=str(row["catalog_id"]),
        path=row["path"],
        version=row["version"],
        name=row["name"],
        sha256=row["sha256"],
        created_at=row["created_at"],
        created_by=row["created_by"],
    )
