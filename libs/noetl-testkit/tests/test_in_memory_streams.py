"""The in-memory log lists its streams as every log does."""

import pytest
from noetl_testkit.compliance.streams import StreamsCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog


class TestInMemoryStreams(StreamsCompliance):
    @pytest.fixture
    def log(self) -> InMemoryEventLog:
        return InMemoryEventLog()

    @pytest.fixture
    def streams(self, log: InMemoryEventLog) -> InMemoryEventLog:
        return log
