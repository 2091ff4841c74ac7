"""Credentials in PostgreSQL: sealed rows by name, replaced and removed as a whole."""

from __future__ import annotations

import asyncpg
from noetl_core.credentials import credential_not_found
from noetl_core.ids import parse_id
from noetl_core.ports.credentials import (
    CredentialInfo,
    CredentialPage,
    NewCredential,
    SealedCredential,
    SealedData,
    StoredCredential,
)
from noetl_core.ports.event_log import Scope

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresCredentials:
    """Port `CredentialStore`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("credentials.sql")

    async def put(self, scope: Scope, credential: NewCredential) -> StoredCredential:
        """Store under its name, in place of what was there."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(
                self._sql["put"],
                credential.credential_id,
                scope.tenant_id,
                scope.organization_id,
                credential.name,
                credential.type,
                credential.description,
                list(credential.tags),
                credential.sealed.key_id,
                credential.sealed.ciphertext,
                credential.stored_by,
            )
        return StoredCredential(info=_info(row), created=row["created"])

    async def get(self, scope: Scope, name: str) -> SealedCredential:
        """One credential."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["get"], scope.tenant_id, scope.organization_id, name)
        if row is None:
            raise credential_not_found(name)
        return _sealed(row)

    async def list(
        self, scope: Scope, *, type_name: str = "", contains: str = "", page_size: int = 100, page_token: str = ""
    ) -> CredentialPage:
        """Credentials by name; the token is the last name of the page before."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(
                self._sql["list"],
                scope.tenant_id,
                scope.organization_id,
                page_token,
                type_name,
                contains,
                page_size + 1,
            )
        shown = rows[:page_size]
        return CredentialPage(
            credentials=tuple(_info(row) for row in shown),
            next_page_token=shown[-1]["name"] if len(rows) > page_size else "",
        )

    async def delete(self, scope: Scope, name: str) -> CredentialInfo:
        """Remove one."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["delete"], scope.tenant_id, scope.organization_id, name)
        if row is None:
            raise credential_not_found(name)
        return _info(row)

    async def sealed_otherwise(
        self, scope: Scope | None, *, key_id: str, after_id: int, limit: int
    ) -> tuple[SealedCredential, ...]:
        """Credentials that another key protects."""
        tenant, organization = (scope.tenant_id, scope.organization_id) if scope else (None, None)
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["sealed_otherwise"], key_id, after_id, tenant, organization, limit)
        return tuple(_sealed(row) for row in rows)

    async def reseal(self, credential: SealedCredential, sealed: SealedData) -> bool:
        """Put data sealed anew in place of those that were read, unless they are gone."""
        number = parse_id(credential.info.credential_id, what="credential_id")
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(
                self._sql["reseal"], number, credential.sealed.ciphertext, sealed.key_id, sealed.ciphertext
            )
        return row is not None


def _info(row: asyncpg.Record) -> CredentialInfo:
    return CredentialInfo(
        credential_id=str(row["credential_id"]),
        name=row["name"],
        type=row["type"],
        description=row["description"],
        tags=tuple(row["tags"]),
        key_id=row["key_id"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        updated_at=row["updated_at"],
        updated_by=row["updated_by"],
    )


def _sealed(row: asyncpg.Record) -> SealedCredential:
    return SealedCredential(
        scope=Scope(tenant_id=row["tenant_id"], organization_id=row["organization_id"]),
        info=_info(row),
        sealed=SealedData(key_id=row["key_id"], ciphertext=row["ciphertext"]),
    )
