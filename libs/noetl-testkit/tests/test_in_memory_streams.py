"""The in-memory log lists its streams as every log does."""

from dataclasses import replace

import pytest
from noetl_core.ports.event_log import EventLog
from noetl_testkit.compliance.streams import HiddenStreamsCompliance, StreamsCompliance
from noetl_testkit.memory.event_log import InMemoryEventLog


class TestInMemoryStreams(StreamsCompliance):
    @pytest.fixture
    def log(self) -> InMemoryEventLog:
        return InMemoryEventLog()

    @pytest.fixture
    def streams(self, log: InMemoryEventLog) -> InMemoryEventLog:
        return log


class TestInMemoryHiddenStreams(HiddenStreamsCompliance):
    @pytest.fixture
    def log(self) -> InMemoryEventLog:
        return InMemoryEventLog()

    @pytest.fixture
    def streams(self, log: InMemoryEventLog) -> InMemoryEventLog:
        return log

    async def give_away(self, log: EventLog, execution_id: int) -> None:
        assert isinstance(log, InMemoryEventLog)
        stream = log.streams[execution_id]
        stream.head = replace(stream.head, tenant_id="evil")
