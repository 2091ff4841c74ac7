"""What publisher and consumer of every bus must do; an adapter's tests subclass this and supply both."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

import pytest
from noetl_core.ports.bus import Delivery, Message, Publisher, PublishFailed, PullConsumer

MakeConsumer = Callable[..., Awaitable[PullConsumer]]
"""Called with subjects and perhaps `max_ack_pending`: a consumer that begins with the first message."""

LONG_SECONDS = 20.0
SHORT_SECONDS = 0.2


async def fetch_all(consumer: PullConsumer, number: int) -> list[Delivery]:
    """That many deliveries, acknowledged, however many fetches it takes."""
    fetched: list[Delivery] = []
    while len(fetched) < number:
        deliveries = await consumer.fetch(batch=number - len(fetched), wait_seconds=LONG_SECONDS)
        assert deliveries, f"only {len(fetched)} of {number} came"
        await consumer.ack(deliveries)
        fetched += deliveries
    return fetched


class BusCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin; each test has a name space of its own."""

    @pytest.fixture
    @abstractmethod
    def publisher(self) -> Publisher:
        """A publisher that is connected."""

    @pytest.fixture
    @abstractmethod
    def make_consumer(self) -> MakeConsumer:
        """Makes consumers that are connected."""

    @pytest.fixture
    def space(self) -> str:
        return f"noetl.events.{uuid4().hex}"

    def message(self, space: str, number: int, *, shard: int = 0) -> Message:
        return Message(
            subject=f"{space}.org.1.{shard}",
            message_id=f"{space}/{shard}/{number}",
            body=f"body {number}".encode(),
            headers={"Noetl-Stream-Version": str(number)},
        )

    def messages(self, space: str, numbers: Sequence[int], *, shard: int = 0) -> list[Message]:
        return [self.message(space, number, shard=shard) for number in numbers]

    async def test_what_is_published_is_delivered_in_order_with_its_headers(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        sent = self.messages(space, range(1_500))
        consumer = await make_consumer(f"{space}.>")

        await publisher.publish_batch(sent)
        got = await fetch_all(consumer, len(sent))

        assert [(delivery.subject, delivery.body) for delivery in got] == [
            (message.subject, message.body) for message in sent
        ]
        assert [delivery.headers["Noetl-Stream-Version"] for delivery in got] == [str(n) for n in range(1_500)]
        assert {delivery.attempt for delivery in got} == {1}

    async def test_an_empty_batch_is_nothing(self, publisher: Publisher) -> None:
        await publisher.publish_batch([])

    async def test_a_message_that_is_published_again_is_delivered_once(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")

        await publisher.publish_batch(self.messages(space, [1, 2, 2]))
        await publisher.publish_batch(self.messages(space, [1, 2, 3]))

        assert [delivery.body for delivery in await fetch_all(consumer, 3)] == [b"body 1", b"body 2", b"body 3"]
        assert await consumer.fetch(batch=10, wait_seconds=SHORT_SECONDS) == ()

    async def test_a_message_that_no_bus_takes_is_named_and_stops_no_other(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")
        stray = Message(subject="elsewhere.unknown", message_id=f"{space}/stray", body=b"")

        with pytest.raises(PublishFailed) as failure:
            await publisher.publish_batch([self.message(space, 1), stray, self.message(space, 2)])

        assert set(failure.value.refused) == {stray.message_id}
        assert failure.value.acknowledged == {f"{space}/0/1", f"{space}/0/2"}
        assert len(await fetch_all(consumer, 2)) == 2

    async def test_a_waiting_fetch_returns_as_soon_as_there_is_one_message(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")
        began_at = time.monotonic()
        waiting = asyncio.create_task(consumer.fetch(batch=100, wait_seconds=LONG_SECONDS))
        await asyncio.sleep(0)

        await publisher.publish_batch([self.message(space, 1)])

        assert [delivery.body for delivery in await waiting] == [b"body 1"]
        assert time.monotonic() - began_at < LONG_SECONDS / 2

    async def test_a_fetch_ends_empty_when_its_wait_is_over(self, make_consumer: MakeConsumer, space: str) -> None:
        consumer = await make_consumer(f"{space}.>")

        assert await consumer.fetch(batch=10, wait_seconds=SHORT_SECONDS) == ()

    async def test_a_cancelled_fetch_loses_nothing(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")
        waiting = asyncio.create_task(consumer.fetch(batch=1, wait_seconds=LONG_SECONDS))
        await asyncio.sleep(SHORT_SECONDS)
        waiting.cancel()

        await publisher.publish_batch([self.message(space, 1)])

        assert len(await fetch_all(consumer, 1)) == 1

    async def test_no_more_is_pending_than_allowed_until_something_is_acknowledged(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>", max_ack_pending=2)
        await publisher.publish_batch(self.messages(space, [1, 2, 3]))

        first: list[Delivery] = []
        while len(first) < 2:
            first += await consumer.fetch(batch=10, wait_seconds=LONG_SECONDS)
        assert await consumer.fetch(batch=10, wait_seconds=SHORT_SECONDS) == ()
        await consumer.ack(first[:1])

        rest = await consumer.fetch(batch=10, wait_seconds=LONG_SECONDS)
        assert [delivery.body for delivery in (*first, *rest)] == [b"body 1", b"body 2", b"body 3"]

    async def test_what_is_not_wanted_now_comes_again_and_says_so(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")
        await publisher.publish_batch([self.message(space, 1)])

        await consumer.nak(await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS))
        again = await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)

        assert [(delivery.body, delivery.attempt) for delivery in again] == [(b"body 1", 2)]

    async def test_what_is_wanted_later_does_not_come_at_once(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")
        await publisher.publish_batch([self.message(space, 1)])
        deliveries = await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)

        await consumer.nak(deliveries, delay_seconds=4 * SHORT_SECONDS)

        assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()
        assert len(await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)) == 1

    async def test_what_is_terminated_never_comes_again(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.>")
        await publisher.publish_batch(self.messages(space, [1]))

        await consumer.term(await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS))
        await publisher.publish_batch(self.messages(space, [2]))

        assert [delivery.body for delivery in await fetch_all(consumer, 1)] == [b"body 2"]
        assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()

    async def test_a_consumer_hears_only_its_subjects_and_they_can_change(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.*.*.0")
        await publisher.publish_batch([self.message(space, 1, shard=1), self.message(space, 1, shard=0)])
        first = await fetch_all(consumer, 1)

        await consumer.set_subjects([f"{space}.*.*.1", f"{space}.*.*.2"])
        await publisher.publish_batch([self.message(space, 2, shard=shard) for shard in (0, 1, 2)])
        later = await fetch_all(consumer, 2)

        assert [delivery.subject[-1] for delivery in (*first, *later)] == ["0", "1", "2"]
        assert await consumer.fetch(batch=10, wait_seconds=SHORT_SECONDS) == ()

    async def test_a_consumer_without_subjects_waits_for_some(
        self, publisher: Publisher, make_consumer: MakeConsumer, space: str
    ) -> None:
        consumer = await make_consumer(f"{space}.*.*.0")
        await consumer.set_subjects([])
        assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()

        waiting = asyncio.create_task(consumer.fetch(batch=1, wait_seconds=LONG_SECONDS))
        await consumer.set_subjects([f"{space}.*.*.1"])
        await publisher.publish_batch([self.message(space, 1, shard=1)])

        assert [delivery.subject[-1] for delivery in await waiting] == ["1"]
