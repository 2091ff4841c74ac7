from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pytest
from noetl_contracts.subjects import TRACEPARENT
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Message, PublishFailed
from noetl_core.ports.outbox import OutboxRow
from noetl_outbox_publisher.application.publish_batch import PublishBatch
from noetl_outbox_publisher.telemetry import PublisherMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.tracing import start_tracing
from noetl_testkit.memory.bus import InMemoryBus
from noetl_testkit.memory.outbox import InMemoryOutbox
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

ALL = frozenset(range(4))
NEVER = float("inf")


def message(number: int, *, subject: str = "noetl.events.t.o.1.0", trace: str = "") -> Message:
    return Message(
        subject=subject,
        message_id=str(number),
        body=str(number).encode(),
        headers={TRACEPARENT: trace} if trace else {},
    )


def traceparent(execution_id: int) -> str:
    return f"00-{execution_id:032x}-{1:016x}-01"


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.outbox = InMemoryOutbox(clock=lambda: self.now)
        self.bus = InMemoryBus()
        self.metrics = MetricSet()
        self.publish = PublishBatch(
            self.outbox,
            self.bus,
            PublisherMetrics(self.metrics),
            batch_rows=3,
            publish_seconds=2.0,
            clock=lambda: self.now,
        )

    @property
    def published(self) -> list[str]:
        return [message.message_id for message in self.bus.published]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing = start_tracing(service="outbox-publisher", instance="test", exporters=[exporter])
    yield exporter
    tracing.close()


async def test_rows_are_published_in_order_and_deleted(world: World) -> None:
    world.outbox.write(*map(message, range(5)))

    more = [await world.publish(ALL, lease_ends_at=NEVER) for _ in range(3)]

    assert world.published == ["0", "1", "2", "3", "4"]
    assert world.outbox.rows == {}
    assert more == [True, False, False]
    assert world.metrics.value("noetl_outbox_published_total") == 5
    assert world.metrics.value("noetl_outbox_batch_rows_count") == 2


async def test_only_shards_that_are_held_are_published(world: World) -> None:
    world.outbox.write(message(1), shard=0)
    world.outbox.write(message(2), shard=1)

    await world.publish({1}, lease_ends_at=NEVER)

    assert world.published == ["2"]


async def test_what_a_lost_bus_did_not_acknowledge_is_kept_and_published_in_order_later(world: World) -> None:
    world.outbox.write(*map(message, range(3)))
    world.bus.refuse_after = 1

    with pytest.raises(PublishFailed):
        await world.publish(ALL, lease_ends_at=NEVER)
    assert [row.message.message_id for row in world.outbox.rows.values()] == ["1", "2"]
    assert world.metrics.value("noetl_outbox_publish_errors_total") == 1

    world.bus.away = False
    await world.publish(ALL, lease_ends_at=NEVER)
    assert world.published == ["0", "1", "2"]


async def test_rows_that_could_not_be_deleted_are_published_again_as_the_same_messages(world: World) -> None:
    world.outbox.write(*map(message, range(2)))
    rows = dict(world.outbox.rows)
    await world.publish(ALL, lease_ends_at=NEVER)
    world.outbox.rows = rows  # as if the process had died between acknowledgement and delete

    await world.publish(ALL, lease_ends_at=NEVER)

    assert world.published == ["0", "1"]
    assert world.outbox.rows == {}


async def test_a_message_that_can_never_be_published_is_dropped_loudly_and_stops_no_other(world: World) -> None:
    world.bus.unpublishable.add("nowhere")
    world.outbox.write(message(1), message(2, subject="nowhere"), message(3))

    with capture_logs() as lines:
        await world.publish(ALL, lease_ends_at=NEVER)

    assert world.published == ["1", "3"]
    assert world.outbox.rows == {}
    assert world.metrics.value("noetl_outbox_refused_total") == 1
    assert [(line["event"], line["message_id"]) for line in lines] == [("outbox.refused", "2")]


class RowOfSeveral(InMemoryOutbox):
    """An outbox whose messages share one row."""

    async def take(
        self, shards: Collection[int], *, limit: int, published: Sequence[int] = ()
    ) -> tuple[OutboxRow, ...]:
        taken = await super().take(shards, limit=limit, published=published)
        return tuple(replace(row, outbox_id=1) for row in taken)

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        if 1 in outbox_ids:
            self.rows.clear()


async def test_a_row_with_several_messages_stays_until_all_of_them_are_settled(world: World) -> None:
    outbox = RowOfSeveral()
    outbox.write(message(1), message(2, subject="nowhere"), message(3))
    publish = PublishBatch(outbox, world.bus, PublisherMetrics(MetricSet()), batch_rows=3, publish_seconds=2.0)
    world.bus.refuse_after = 1

    with pytest.raises(PublishFailed):
        await publish(ALL, lease_ends_at=NEVER)
    assert len(outbox.rows) == 3

    world.bus.away = False
    world.bus.unpublishable.add("nowhere")
    with capture_logs() as lines:
        assert await publish(ALL, lease_ends_at=NEVER)
    assert world.published == ["1", "3"]
    assert [line["event"] for line in lines] == ["outbox.refused"]
    assert outbox.rows == {}


async def test_nothing_is_published_when_the_lease_may_end_before_the_batch(world: World) -> None:
    world.outbox.write(message(1))

    with pytest.raises(Unavailable):
        await world.publish(ALL, lease_ends_at=1.9)

    assert world.published == []
    assert len(world.outbox.rows) == 1


async def test_the_time_from_commit_to_acknowledgement_is_measured(world: World) -> None:
    world.outbox.write(message(1))
    world.now = 0.5

    await world.publish(ALL, lease_ends_at=NEVER)

    assert world.metrics.value("noetl_outbox_commit_to_ack_seconds_sum") == 0.5


async def test_each_execution_sees_the_publishing_of_its_rows_in_its_own_trace(
    world: World, spans: InMemorySpanExporter
) -> None:
    world.outbox.write(message(1, trace=traceparent(7)), message(2, trace=traceparent(7)), execution_id=7)
    world.outbox.write(message(3, trace=traceparent(8)), execution_id=8)
    world.outbox.write(message(4), execution_id=9)

    while await world.publish(ALL, lease_ends_at=NEVER):
        pass

    finished = {span.attributes["noetl.execution_id"]: span for span in spans.get_finished_spans() if span.attributes}
    assert {span.name for span in finished.values()} == {"outbox.publish"}
    assert {name: span.context.trace_id for name, span in finished.items() if span.context} == {"7": 7, "8": 8}
    assert finished["7"].attributes is not None
    assert finished["7"].attributes["messaging.batch.message_count"] == 2


class CountingOutbox(InMemoryOutbox):
    """Knows how often rows were deleted by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.deletes = 0

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        self.deletes += bool(outbox_ids)
        await super().delete(outbox_ids)


class TestSettlingWithTheNextTaking:
    @pytest.fixture
    def world(self) -> World:
        world = World()
        world.outbox = CountingOutbox()
        self.heard: list[bool] = []
        world.publish = PublishBatch(
            world.outbox,
            world.bus,
            PublisherMetrics(MetricSet()),
            batch_rows=3,
            publish_seconds=2.0,
            heard_of_more=lambda shards: self.heard.pop(0) if self.heard else False,
            clock=lambda: 0.0,
        )
        return world

    async def test_what_was_published_goes_with_the_next_taking_if_something_was_committed_meanwhile(
        self, world: World
    ) -> None:
        world.outbox.write(message(1))
        self.heard = [True, False]

        assert await world.publish(ALL, lease_ends_at=NEVER)
        assert list(world.outbox.rows) == [1]
        world.outbox.write(message(2))
        assert not await world.publish(ALL, lease_ends_at=NEVER)

        assert world.published == ["1", "2"]
        assert list(world.outbox.rows) == [2]
        assert world.outbox.takes == 2

    async def test_it_stays_until_somebody_settles_if_nothing_follows(self, world: World) -> None:
        world.outbox.write(message(1))

        assert not await world.publish(ALL, lease_ends_at=NEVER)
        was_settled = world.publish.is_settled
        await world.publish.settle()

        assert (was_settled, world.publish.is_settled) == (False, True)
        assert world.outbox.rows == {}

    async def test_it_goes_also_if_nothing_is_found_after_all(self, world: World) -> None:
        world.outbox.write(message(1))
        self.heard = [True]

        assert await world.publish(ALL, lease_ends_at=NEVER)
        assert not await world.publish(ALL, lease_ends_at=NEVER)

        assert world.outbox.rows == {}

    async def test_a_taking_that_fails_leaves_it_to_the_one_after(self, world: World) -> None:
        world.outbox.write(message(1))
        self.heard = [True]
        await world.publish(ALL, lease_ends_at=NEVER)
        world.outbox.away = True
        with pytest.raises(Unavailable):
            await world.publish(ALL, lease_ends_at=NEVER)
        world.outbox.away = False

        assert not await world.publish(ALL, lease_ends_at=NEVER)

        assert world.outbox.rows == {}
        assert world.published == ["1"]

    async def test_whoever_does_not_go_on_settles(self, world: World) -> None:
        world.outbox.write(message(1))
        self.heard = [True]
        await world.publish(ALL, lease_ends_at=NEVER)

        await world.publish.settle()
        await world.publish.settle()

        assert world.outbox.rows == {}
        assert isinstance(world.outbox, CountingOutbox)
        assert world.outbox.deletes == 1

    async def test_what_failed_afterwards_does_not_bring_back_what_was_published_before(self, world: World) -> None:
        world.outbox.write(message(1))
        self.heard = [True]
        await world.publish(ALL, lease_ends_at=NEVER)
        world.outbox.write(message(2), message(3))
        world.bus.refuse_after = 1

        with pytest.raises(PublishFailed):
            await world.publish(ALL, lease_ends_at=NEVER)

        assert [row.message.message_id for row in world.outbox.rows.values()] == ["3"]
