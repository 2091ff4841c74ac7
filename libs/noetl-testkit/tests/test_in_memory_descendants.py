from __future__ import annotations

import pytest
from noetl_testkit.compliance.descendants import DescendantsCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog


class TestInMemoryDescendants(DescendantsCompliance):
    @pytest.fixture
    def log(self) -> InMemoryEventLog:
        return InMemoryEventLog()

    @pytest.fixture
    def descendants(self, log: InMemoryEventLog) -> InMemoryEventLog:
        return log
