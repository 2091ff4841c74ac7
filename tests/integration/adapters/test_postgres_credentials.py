from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from noetl_adapters.postgres.credentials import PostgresCredentials
from noetl_adapters.postgres.pool import open_pool
from noetl_testkit.compliance.credential_store import CredentialStoreCompliance


@pytest.fixture
async def store(api_dsn: str) -> AsyncIterator[PostgresCredentials]:
    pool = await open_pool(api_dsn, min_size=1, max_size=8, application_name="test")
    yield PostgresCredentials(pool)
    await pool.close()


class TestPostgresCredentials(CredentialStoreCompliance):
    @pytest.fixture
    def store(self, store: PostgresCredentials) -> PostgresCredentials:
        return store


@pytest.mark.parametrize("role", ["noetl_publisher", "noetl_projector"])
async def test_no_other_service_reads_credentials(installed_dsn: str, role: str) -> None:
    connection = await asyncpg.connect(f"{installed_dsn}?role={role}")
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM noetl.credential")
    finally:
        await connection.close()
