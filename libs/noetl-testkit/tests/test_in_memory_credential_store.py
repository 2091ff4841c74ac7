from __future__ import annotations

import pytest
from noetl_testkit.compliance.credential_store import CredentialStoreCompliance
from noetl_testkit.memory.credential_store import InMemoryCredentialStore


class TestInMemoryCredentialStore(CredentialStoreCompliance):
    @pytest.fixture
    def store(self) -> InMemoryCredentialStore:
        return InMemoryCredentialStore()
