"""What every outbox, its leases and its commit signal must do; an adapter's tests subclass these suites."""

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import replace

import pytest
from noetl_contracts.subjects import LOG_BRANCH
from noetl_core.ports.bus import Message
from noetl_core.ports.outbox import CommitSignal, Outbox, OutboxLeases, OutboxPublisher

LEASE_SECONDS = 2.0
LONG_SECONDS = 20.0
SHORT_SECONDS = 0.2


def message(number: int) -> Message:
    return Message(
        subject="noetl.events.default.default.1.0",
        message_id=str(number),
        body=f"body {number}".encode(),
        headers={"Noetl-Stream-Version": str(number)},
    )


def publisher(name: str, incarnation: str = "1") -> OutboxPublisher:
    return OutboxPublisher(instance=name, incarnation=incarnation)


class OutboxCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def outbox(self) -> Outbox:
        """An empty outbox."""

    @abstractmethod
    async def write(self, outbox: Outbox, numbers: range, *, shard: int) -> None:
        """Commit rows with `message(number)`."""

    async def test_rows_are_taken_in_order_and_stay_until_they_are_deleted(self, outbox: Outbox) -> None:
        await self.write(outbox, range(1, 6), shard=3)

        first = await outbox.take({3}, limit=2)
        again = await outbox.take({3}, limit=3)
        await outbox.delete([row.outbox_id for row in again])
        rest = await outbox.take({3}, limit=10)

        assert [row.message.message_id for row in first] == ["1", "2"]
        assert [row.message.message_id for row in again] == ["1", "2", "3"]
        assert [row.message.message_id for row in rest] == ["4", "5"]

    async def test_a_row_carries_its_message_unchanged_but_for_the_mark_of_its_log(self, outbox: Outbox) -> None:
        await self.write(outbox, range(7, 8), shard=3)

        (row,) = await outbox.take({3}, limit=2)

        own = {name: text for name, text in row.message.headers.items() if name != LOG_BRANCH}
        assert replace(row.message, headers=own) == message(7)
        assert (row.shard, row.execution_id) == (3, 1)
        assert 0 <= row.age_seconds < LONG_SECONDS

    async def test_only_rows_of_the_given_shards_are_taken(self, outbox: Outbox) -> None:
        for shard in range(3):
            await self.write(outbox, range(shard, shard + 1), shard=shard)

        assert [row.shard for row in await outbox.take({0, 2}, limit=10)] == [0, 2]
        assert await outbox.take(set(), limit=10) == ()

    async def test_deleting_what_is_gone_does_nothing(self, outbox: Outbox) -> None:
        await self.write(outbox, range(1, 3), shard=0)
        rows = await outbox.take({0}, limit=10)

        for _ in range(2):
            await outbox.delete([row.outbox_id for row in rows])

        assert await outbox.take({0}, limit=10) == ()

    async def test_the_backlog_is_what_waits_in_all_shards(self, outbox: Outbox) -> None:
        empty = await outbox.backlog()
        await self.write(outbox, range(1, 4), shard=0)
        await self.write(outbox, range(4, 6), shard=1)
        full = await outbox.backlog()

        assert (empty.rows, empty.oldest_age_seconds) == (0, 0.0)
        assert full.rows == 5
        assert 0 <= full.oldest_age_seconds < LONG_SECONDS


class OutboxLeasesCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin; there are 5 shards."""

    @pytest.fixture
    @abstractmethod
    def leases(self) -> OutboxLeases:
        """Leases of 5 shards that nobody holds."""

    @abstractmethod
    async def let_pass(self, seconds: float) -> None:
        """Let time go by on the clock that judges leases."""

    async def hold(self, leases: OutboxLeases, name: str, incarnation: str = "1") -> frozenset[int]:
        holding = await leases.hold(publisher(name, incarnation), lease_seconds=LEASE_SECONDS)
        return holding.shards

    async def test_a_publisher_alone_holds_everything(self, leases: OutboxLeases) -> None:
        holding = await leases.hold(publisher("ada"), lease_seconds=LEASE_SECONDS)

        assert await leases.shard_count() == 5
        assert holding.shards == frozenset(range(5))
        assert (holding.fair_share, holding.live_publishers) == (5, 1)

    async def test_a_second_publisher_gets_nothing_before_the_first_gives_back(self, leases: OutboxLeases) -> None:
        await self.hold(leases, "ada")

        assert await self.hold(leases, "bob") == frozenset()
        ada = await self.hold(leases, "ada")
        bob = await self.hold(leases, "bob")

        assert (len(ada), len(bob)) == (3, 2)
        assert ada | bob == frozenset(range(5))

    async def test_what_is_renewed_is_not_lost_when_its_first_lease_would_have_ended(
        self, leases: OutboxLeases
    ) -> None:
        mine = await self.hold(leases, "ada")
        for _ in range(4):
            await self.let_pass(LEASE_SECONDS / 2)
            assert await self.hold(leases, "ada") == mine

    async def test_the_shards_of_a_silent_publisher_pass_on_when_its_lease_has_ended(
        self, leases: OutboxLeases
    ) -> None:
        await self.hold(leases, "ada")
        assert await self.hold(leases, "bob") == frozenset()

        await self.let_pass(LEASE_SECONDS * 1.2)

        assert await self.hold(leases, "bob") == frozenset(range(5))
        assert await self.hold(leases, "ada") == frozenset()

    async def test_what_is_released_is_free_at_once(self, leases: OutboxLeases) -> None:
        await self.hold(leases, "ada")

        await leases.release(publisher("ada"))

        assert await self.hold(leases, "bob") == frozenset(range(5))

    async def test_a_new_incarnation_replaces_the_old_one_at_once(self, leases: OutboxLeases) -> None:
        await self.hold(leases, "ada", "old")

        ended = await leases.replace(publisher("ada", "new"))

        assert ended == 5
        assert await self.hold(leases, "ada", "new") == frozenset(range(5))

    async def test_nobody_replaces_an_instance_of_another_name(self, leases: OutboxLeases) -> None:
        await self.hold(leases, "ada/1")

        assert await leases.replace(publisher("ada", "x")) == 0
        assert await leases.replace(publisher("ad", "x")) == 0
        assert await leases.replace(publisher("ada/1", "x")) == 5

    async def test_publishers_that_ask_at_once_never_hold_the_same_shard(self, leases: OutboxLeases) -> None:
        names = [f"publisher-{number}" for number in range(4)]
        for _ in range(3):
            holdings = await asyncio.gather(*(self.hold(leases, name) for name in names))
        # Renewing in the same round as giving back, a publisher may for a moment have less than its share.
        held = [shard for holding in holdings for shard in holding]

        assert len(held) == len(set(held))
        settled = [len(await self.hold(leases, name)) for _ in range(2) for name in names][-4:]
        assert sorted(settled) == [1, 1, 1, 2]


class CommitSignalCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def signal(self) -> CommitSignal:
        """A signal that is connected, or will be soon."""

    @abstractmethod
    async def commit(self, signal: CommitSignal, *shards: int) -> None:
        """Commit something in these shards."""

    async def settle(self, signal: CommitSignal) -> None:
        """Until commits are heard of, and everything heard of so far is forgotten."""
        heard = False
        while not heard:
            await self.commit(signal, 0)
            heard = await signal.wait({0}, timeout_seconds=SHORT_SECONDS)
        while await signal.wait({0}, timeout_seconds=SHORT_SECONDS):
            pass

    async def test_a_commit_in_one_of_the_shards_ends_the_wait(self, signal: CommitSignal) -> None:
        await self.settle(signal)
        began_at = time.monotonic()
        waiting = asyncio.create_task(signal.wait({1, 2}, timeout_seconds=LONG_SECONDS))
        await asyncio.sleep(0)

        await self.commit(signal, 2)

        assert await waiting
        assert time.monotonic() - began_at < LONG_SECONDS / 2

    async def test_a_commit_elsewhere_does_not(self, signal: CommitSignal) -> None:
        await self.settle(signal)

        await self.commit(signal, 3)

        assert not await signal.wait({1, 2}, timeout_seconds=SHORT_SECONDS)

    async def test_a_wait_can_be_ended_before_its_time(self, signal: CommitSignal) -> None:
        await self.settle(signal)
        waiting = asyncio.create_task(signal.wait({1}, timeout_seconds=10 * LONG_SECONDS))
        await asyncio.sleep(0)

        signal.wake()

        assert not await asyncio.wait_for(waiting, LONG_SECONDS)

    async def test_whoever_asks_without_waiting_hears_of_a_commit_once(self, signal: CommitSignal) -> None:
        await self.settle(signal)
        assert not signal.heard({1, 2})
        await self.commit(signal, 1, 2)

        assert await signal.wait({1}, timeout_seconds=LONG_SECONDS)
        assert not signal.heard({1, 2})
        await self.commit(signal, 1)
        heard = asyncio.create_task(signal.wait({3}, timeout_seconds=10 * LONG_SECONDS))
        await self.commit(signal, 1, 3)
        assert await heard
        assert not signal.heard({1})

    async def test_a_commit_before_the_wait_is_remembered_once(self, signal: CommitSignal) -> None:
        await self.settle(signal)

        await self.commit(signal, 1)

        assert await signal.wait({1}, timeout_seconds=LONG_SECONDS)
        assert not await signal.wait({1}, timeout_seconds=SHORT_SECONDS)
