"""The in-memory scan leaves nothing out."""

import pytest
from noetl_core.ports.reachability import LogScan
from noetl_testkit.compliance.reachability import LogScanCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.reachability import InMemoryLogScan


class TestInMemoryLogScan(LogScanCompliance):
    @pytest.fixture
    def log(self) -> InMemoryEventLog:
        return InMemoryEventLog()

    @pytest.fixture
    def scan(self, log: InMemoryEventLog) -> LogScan:
        return InMemoryLogScan(log, page_events=3)
