import pytest
from noetl_testkit.compliance.projections import ProjectionStoreCompliance
from noetl_testkit.memory.projections import InMemoryProjections


class TestInMemoryProjections(ProjectionStoreCompliance):
    @pytest.fixture
    def store(self) -> InMemoryProjections:
        return InMemoryProjections()
