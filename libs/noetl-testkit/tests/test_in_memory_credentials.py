import pytest
from noetl_testkit.compliance.credentials import CredentialStoreCompliance
from noetl_testkit.memory.credentials import InMemoryCredentials


class TestInMemoryCredentials(CredentialStoreCompliance):
    @pytest.fixture
    def store(self) -> InMemoryCredentials:
        return InMemoryCredentials()
