from __future__ import annotations

import pytest
from noetl_core.ports.leases import ShardLeases
from noetl_testkit.compliance.event_log import EventLogCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases


class TestInMemoryEventLog(EventLogCompliance):
    @pytest.fixture
    def leases(self) -> InMemoryShardLeases:
        return InMemoryShardLeases()

    @pytest.fixture
    def log(self, leases: ShardLeases) -> InMemoryEventLog:
        assert isinstance(leases, InMemoryShardLeases)
        return InMemoryEventLog(leases=leases)
