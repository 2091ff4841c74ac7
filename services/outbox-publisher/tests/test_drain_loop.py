import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from noetl_contracts.subjects import EVENTS
from noetl_core.errors import DeadlinePassed, Unavailable
from noetl_core.ports.bus import Message
from noetl_core.ports.outbox import OutboxPublisher
from noetl_outbox_publisher.application.drain import Drain
from noetl_outbox_publisher.application.publish_batch import PublishBatch
from noetl_outbox_publisher.entrypoints import drain_loop
from noetl_outbox_publisher.entrypoints.drain_loop import DrainLoop, measure_backlog
from noetl_outbox_publisher.telemetry import PublisherMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.shard_ownership import ShardCountMismatch
from noetl_testkit.memory.bus import InMemoryBus
from noetl_testkit.memory.outbox import InMemoryCommitSignal, InMemoryOutbox, InMemoryOutboxLeases
from noetl_testkit.until import until
from structlog.testing import capture_logs

FAR_TOO_LONG = 600.0


class World:
    def __init__(self, *, poll_seconds: float = FAR_TOO_LONG) -> None:
        self.outbox = InMemoryOutbox()
        self.leases = InMemoryOutboxLeases(shards=4)
        self.bus = InMemoryBus()
        self.signal = InMemoryCommitSignal()
        self.stopping = asyncio.Event()
        self.metrics = MetricSet()
        self.publisher_metrics = PublisherMetrics(self.metrics)
        self.beats = 0
        self.drain = Drain(
            self.leases,
            PublishBatch(self.outbox, self.bus, self.publisher_metrics, batch_rows=2, publish_seconds=2.0),
            self.publisher_metrics,
            publisher=OutboxPublisher(instance="ada", incarnation="1"),
            lease_seconds=FAR_TOO_LONG,
            poll_seconds=poll_seconds,
        )
        self.loop = DrainLoop(self.drain, self.signal, shard_count=4, poll_seconds=poll_seconds, stopping=self.stopping)

    def beat(self) -> None:
        self.beats += 1

    def commit(self, *numbers: int, shard: int = 0) -> None:
        self.write(*numbers, shard=shard)
        self.signal.commit(shard)

    def write(self, *numbers: int, shard: int = 0, events: int = 1) -> None:
        headers = {EVENTS: str(events)} if events > 1 else {}
        for number in numbers:
            message = Message(subject="noetl.events.t.o.1.0", message_id=str(number), body=b"", headers=headers)
            self.outbox.write(message, shard=shard)

    @property
    def published(self) -> list[str]:
        return [message.message_id for message in self.bus.published]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    running = asyncio.create_task(world.loop.run(world.beat))
    await until(lambda: world.beats > 0)
    yield world
    world.stopping.set()
    await asyncio.wait_for(running, 60)


async def test_a_commit_is_published_without_waiting_for_a_poll(world: World) -> None:
    world.commit(1, 2, 3)

    await until(lambda: world.published == ["1", "2", "3"])


async def test_a_commit_that_nobody_told_of_is_found_by_looking() -> None:
    world = World(poll_seconds=0.01)
    running = asyncio.create_task(world.loop.run(world.beat))
    await until(lambda: world.beats > 0)

    world.write(1)

    await until(lambda: world.published == ["1"])
    world.stopping.set()
    await running


async def test_an_idle_loop_asks_the_database_only_when_something_was_committed(world: World) -> None:
    takes = world.outbox.takes
    world.commit(1)
    await until(lambda: world.published == ["1"])

    assert world.outbox.takes == takes + 1


async def test_what_was_published_is_deleted_soon_although_nothing_else_is_committed(world: World) -> None:
    world.commit(1)

    await until(lambda: world.published == ["1"] and not world.outbox.rows)


async def test_a_commit_that_comes_soon_has_what_was_published_before_deleted_with_its_own_taking(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_loop, "SETTLE_SECONDS", FAR_TOO_LONG)
    takes = world.outbox.takes
    world.commit(1)
    await until(lambda: world.published == ["1"])
    assert list(world.outbox.rows) == [1]

    world.commit(2)

    await until(lambda: world.published == ["1", "2"])
    assert list(world.outbox.rows) == [2]
    assert world.outbox.takes == takes + 2


async def test_what_cannot_be_deleted_now_is_deleted_when_the_database_is_back(world: World) -> None:
    delete = world.outbox.delete
    refusals = 0

    async def refused(outbox_ids: Sequence[int]) -> None:
        nonlocal refusals
        if refusals < 2 and outbox_ids:
            refusals += 1
            raise Unavailable("the database is away")
        await delete(outbox_ids)

    world.outbox.delete = refused  # type: ignore[method-assign]
    world.commit(1)

    await until(lambda: refusals == 2 and not world.outbox.rows)
    assert world.published == ["1"]


async def test_a_loop_that_waits_for_commits_ends_with_the_process_at_once() -> None:
    world = World()
    running = asyncio.create_task(world.loop.run(world.beat))
    await until(lambda: world.beats > 0)
    await asyncio.sleep(0)

    world.stopping.set()

    await asyncio.wait_for(running, 60)


async def test_a_loop_that_publishes_when_the_process_stops_does_not_wait_for_another_commit() -> None:
    world = World()
    take = world.outbox.take

    async def stops_meanwhile(*arguments: Any, **named: Any) -> Any:
        rows = await take(*arguments, **named)
        world.stopping.set()
        await asyncio.sleep(0.01)
        return rows

    world.outbox.take = stops_meanwhile  # type: ignore[method-assign]

    await asyncio.wait_for(world.loop.run(world.beat), 5)


async def test_a_process_that_stops_between_two_batches_deletes_what_it_has_published() -> None:
    world = World()
    world.write(1, 2, 3)
    await world.drain.begin(shard_count=4)
    assert await world.drain.step()
    assert len(world.outbox.rows) == 3

    await world.drain.end()

    assert [row.message.message_id for row in world.outbox.rows.values()] == ["3"]


async def test_a_loop_goes_on_by_itself_when_the_bus_is_back(world: World) -> None:
    world.bus.away = True
    with capture_logs() as lines:
        world.commit(1)
        await until(lambda: world.metrics.value("noetl_outbox_publish_errors_total") >= 3)
        world.bus.away = False

        await until(lambda: world.published == ["1"])

    assert [line["event"] for line in lines if line["event"].startswith("outbox.")] == [
        "outbox.stalled",
        "outbox.resumed",
    ]


async def test_a_loop_that_only_fails_does_not_look_alive(world: World) -> None:
    world.outbox.away = True
    world.commit(1)
    await until(lambda: world.loop._failures > 0)
    beats = world.beats
    await until(lambda: world.loop._failures > 2)

    assert world.beats == beats
    world.outbox.away = False
    await until(lambda: world.beats > beats)


async def test_a_loop_that_cannot_ever_work_ends() -> None:
    world = World()
    loop = DrainLoop(world.drain, world.signal, shard_count=64, poll_seconds=1.0, stopping=world.stopping)

    with pytest.raises(ShardCountMismatch):
        await loop.run(world.beat)


async def test_once_ends_when_the_outbox_is_empty() -> None:
    world = World()
    world.write(1, 2, 3)

    await world.loop.until_empty(world.outbox, timeout_seconds=60)

    assert world.published == ["1", "2", "3"]


async def test_a_backlog_of_messages_with_many_events_is_drained_without_a_commit_or_a_poll() -> None:
    world = World()
    world.write(1, 2, 3, events=100)
    world.write(4)
    world.write(5, 6, events=2)
    running = asyncio.create_task(world.loop.run(world.beat))

    await until(lambda: world.published == ["1", "2", "3", "4", "5", "6"])

    world.stopping.set()
    await asyncio.wait_for(running, 60)
    assert world.outbox.rows == {}


async def test_once_drains_messages_with_many_events_without_a_poll() -> None:
    world = World()
    world.write(1, 2, 3, events=100)

    await world.loop.until_empty(world.outbox, timeout_seconds=60)

    assert world.published == ["1", "2", "3"]


async def test_once_waits_for_rows_that_another_publisher_drains() -> None:
    world = World(poll_seconds=0.01)
    other = OutboxPublisher(instance="bob", incarnation="1")
    await world.leases.hold(other, lease_seconds=FAR_TOO_LONG)
    world.write(1)
    running = asyncio.create_task(world.loop.until_empty(world.outbox, timeout_seconds=60))
    await until(lambda: world.loop._drain._begun)
    assert not running.done()

    await world.outbox.delete([1])

    await asyncio.wait_for(running, 60)
    assert world.published == []


async def test_once_fails_when_the_bus_stays_away() -> None:
    world = World(poll_seconds=0.01)
    world.write(1)
    world.bus.away = True

    with pytest.raises(DeadlinePassed):
        await world.loop.until_empty(world.outbox, timeout_seconds=0.2)


async def test_the_backlog_is_shown() -> None:
    world = World()
    world.write(1, 2)
    measuring = asyncio.create_task(measure_backlog(world.outbox, world.publisher_metrics, world.beat))

    await until(lambda: world.beats > 0)

    assert world.metrics.value("noetl_outbox_waiting_rows") == 2
    measuring.cancel()
    with suppress(asyncio.CancelledError):
        await measuring
