import pytest
from noetl_testkit.compliance.event_log import SHARDS
from noetl_testkit.compliance.routing_snapshots import RoutingPlace, RoutingSnapshotsCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots


class TestInMemoryRoutingSnapshots(RoutingSnapshotsCompliance):
    @pytest.fixture
    def place(self) -> RoutingPlace:
        leases = InMemoryShardLeases(shard_count=SHARDS)
        log = InMemoryEventLog(leases=leases, shard_count=SHARDS)
        return RoutingPlace(store=InMemoryRoutingSnapshots(log, leases), log=log, leases=leases)
