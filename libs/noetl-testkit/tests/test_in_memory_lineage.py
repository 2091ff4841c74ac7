"""The in-memory lineage answers as every lineage does."""

import pytest
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.lineage import Lineage
from noetl_testkit.compliance.lineage import LineageCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.lineage import InMemoryLineage


class TestInMemoryLineage(LineageCompliance):
    @pytest.fixture
    def log(self) -> InMemoryEventLog:
        return InMemoryEventLog()

    @pytest.fixture
    def lineage(self, log: EventLog) -> Lineage:
        return InMemoryLineage(log)
