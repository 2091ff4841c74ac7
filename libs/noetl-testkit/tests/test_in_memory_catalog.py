from __future__ import annotations

import pytest
from noetl_testkit.compliance.catalog import CatalogStoreCompliance
from noetl_testkit.memory.catalog import InMemoryCatalog


class TestInMemoryCatalog(CatalogStoreCompliance):
    @pytest.fixture
    def store(self) -> InMemoryCatalog:
        return InMemoryCatalog()
