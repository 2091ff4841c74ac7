from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from noetl_adapters.postgres.catalog import PostgresCatalog
from noetl_adapters.postgres.pool import open_pool
from noetl_core.errors import InvalidInput
from noetl_testkit.compliance.catalog import ACME, CatalogStoreCompliance


@pytest.fixture
async def store(api_dsn: str) -> AsyncIterator[PostgresCatalog]:
    pool = await open_pool(api_dsn, min_size=1, max_size=8, application_name="test")
    yield PostgresCatalog(pool)
    await pool.close()


class TestPostgresCatalog(CatalogStoreCompliance):
    @pytest.fixture
    def store(self, store: PostgresCatalog) -> PostgresCatalog:
        return store


async def test_a_path_that_the_database_cannot_hold_is_refused(store: PostgresCatalog) -> None:
    with pytest.raises(InvalidInput):
        await store.get(ACME, path="a\0b")
