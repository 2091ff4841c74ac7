import pytest
from noetl_testkit.compliance.projections import ProjectionStoreCompliance
from noetl_testkit.compliance.snapshots import SnapshotStoreCompliance
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.memory.snapshots import InMemorySnapshots


class TestInMemoryProjections(ProjectionStoreCompliance):
    @pytest.fixture
    def store(self) -> InMemoryProjections:
        return InMemoryProjections()


class TestInMemorySnapshots(SnapshotStoreCompliance):
    @pytest.fixture
    def store(self) -> InMemorySnapshots:
        return InMemorySnapshots()
