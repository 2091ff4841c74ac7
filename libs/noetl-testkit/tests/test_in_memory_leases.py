from __future__ import annotations

import pytest
from noetl_testkit.compliance.leases import ShardLeasesCompliance
from noetl_testkit.memory.leases import InMemoryShardLeases


class TestInMemoryShardLeases(ShardLeasesCompliance):
    @pytest.fixture
    def leases(self) -> InMemoryShardLeases:
        return InMemoryShardLeases()
