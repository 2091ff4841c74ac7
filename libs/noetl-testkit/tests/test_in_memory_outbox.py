import pytest
from noetl_core.ports.outbox import CommitSignal, Outbox, OutboxLeases
from noetl_testkit.compliance.outbox import (
    CommitSignalCompliance,
    OutboxCompliance,
    OutboxLeasesCompliance,
    message,
)
from noetl_testkit.memory.outbox import InMemoryCommitSignal, InMemoryOutbox, InMemoryOutboxLeases


class TestInMemoryOutbox(OutboxCompliance):
    @pytest.fixture
    def outbox(self) -> InMemoryOutbox:
        return InMemoryOutbox()

    async def write(self, outbox: Outbox, numbers: range, *, shard: int) -> None:
        assert isinstance(outbox, InMemoryOutbox)
        outbox.write(*map(message, numbers), shard=shard)


class TestInMemoryOutboxLeases(OutboxLeasesCompliance):
    now = 0.0

    @pytest.fixture
    def leases(self) -> OutboxLeases:
        return InMemoryOutboxLeases(shards=5, clock=lambda: self.now)

    async def let_pass(self, seconds: float) -> None:
        self.now += seconds


class TestInMemoryCommitSignal(CommitSignalCompliance):
    @pytest.fixture
    def signal(self) -> InMemoryCommitSignal:
        return InMemoryCommitSignal()

    async def commit(self, signal: CommitSignal, *shards: int) -> None:
        assert isinstance(signal, InMemoryCommitSignal)
        signal.commit(*shards)
