import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.manager import JetStreamManager
from noetl_adapters.nats.client import NatsClient
from noetl_adapters.nats.connection import NatsConnection, NatsEvent
from noetl_adapters.nats.consumers import ConsumerSpec, Start
from noetl_adapters.nats.provision import StreamMismatch, provision_streams
from noetl_adapters.nats.publisher import NatsPublisher
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_cli.dev.nats import EmbeddedNats
from noetl_contracts.subjects import CONTROL_STREAM, EVENTS_STREAM, STREAMS, WORK_STREAM, StreamSpec
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Message, Publisher, PublishFailed, PullConsumer
from noetl_testkit.backends import NatsBackend, embedded_nats
from noetl_testkit.compliance.bus import LONG_SECONDS, SHORT_SECONDS, BusCompliance, MakeConsumer, fetch_all
from noetl_testkit.until import until


@pytest.fixture
async def connection(nats_server: NatsBackend) -> AsyncIterator[NatsConnection]:
    async with NatsConnection(nats_server.url, name="test") as connection:
        await connection.wait_connected(timeout_seconds=LONG_SECONDS)
        yield connection


@pytest.fixture
async def restartable() -> AsyncIterator[EmbeddedNats]:
    with embedded_nats() as server:
        yield server


def spec(*subjects: str, max_ack_pending: int = 1_000, start: Start = Start.ALL) -> ConsumerSpec:
    return ConsumerSpec(
        stream=EVENTS_STREAM,
        durable=f"test-{uuid4().hex}",
        subjects=subjects,
        start=start,
        max_ack_pending=max_ack_pending,
        inactive_seconds=60.0,
    )


def message(space: str, number: int) -> Message:
    return Message(subject=f"{space}.org.1.0", message_id=f"{space}/{number}", body=f"body {number}".encode())


class TestNatsBus(BusCompliance):
    @pytest.fixture
    def publisher(self, connection: NatsConnection) -> Publisher:
        return NatsPublisher(connection)

    @pytest.fixture
    async def make_consumer(self, connection: NatsConnection) -> AsyncIterator[MakeConsumer]:
        made: list[NatsPullConsumer] = []

        async def make(*subjects: str, max_ack_pending: int = 1_000) -> PullConsumer:
            made.append(NatsPullConsumer(connection, spec(*subjects, max_ack_pending=max_ack_pending)))
            return made[-1]

        yield make
        for consumer in made:
            await consumer.close()

    async def test_what_exceeds_the_window_still_arrives_in_order(
        self, connection: NatsConnection, make_consumer: MakeConsumer, space: str
    ) -> None:
        publisher = NatsPublisher(connection, max_in_flight=7)
        consumer = await make_consumer(f"{space}.>")

        await publisher.publish_batch(self.messages(space, range(100)))

        assert [delivery.body for delivery in await fetch_all(consumer, 100)] == [
            f"body {number}".encode() for number in range(100)
        ]

    async def test_replicas_that_share_a_consumer_get_each_message_once(
        self, connection: NatsConnection, publisher: Publisher, space: str
    ) -> None:
        shared = replace(spec(f"{space}.>"), shared=True)
        replicas = [NatsPullConsumer(connection, shared) for _ in range(2)]
        await publisher.publish_batch(self.messages(space, range(100)))

        got: list[bytes] = []

        async def work(replica: NatsPullConsumer) -> None:
            while len(got) < 100:
                with suppress(Unavailable):  # A server that has no processor for a while does not answer in time.
                    await take(replica)

        async def take(replica: NatsPullConsumer) -> None:
            deliveries = await replica.fetch(batch=5, wait_seconds=1.0)
            got.extend(delivery.body for delivery in deliveries)
            await replica.ack(deliveries)

        await asyncio.gather(*map(work, replicas))
        await asyncio.gather(*map(take, replicas))

        assert sorted(got) == sorted(f"body {number}".encode() for number in range(100))

    async def test_what_was_delivered_and_not_fetched_goes_back_when_a_replica_closes(
        self, connection: NatsConnection, publisher: Publisher, space: str
    ) -> None:
        shared = replace(spec(f"{space}.>"), shared=True)
        leaving, staying = (NatsPullConsumer(connection, shared) for _ in range(2))
        assert await leaving.fetch(batch=10, wait_seconds=SHORT_SECONDS) == ()
        await publisher.publish_batch(self.messages(space, range(10)))
        first = await leaving.fetch(batch=1, wait_seconds=LONG_SECONDS)
        await leaving.ack(first)

        await leaving.close()

        assert len(await fetch_all(staying, 9)) == 9


async def test_what_is_kept_is_in_progress_for_the_server_and_so_is_what_nobody_has_fetched_yet(
    connection: NatsConnection,
) -> None:
    space = f"noetl.events.{uuid4().hex}"
    consumer = NatsPullConsumer(connection, spec(f"{space}.>"))
    assert await consumer.fetch(batch=10, wait_seconds=SHORT_SECONDS) == ()
    await NatsPublisher(connection).publish_batch([message(space, number) for number in range(3)])
    await until(lambda: consumer._requests is not None and len(consumer._requests.waiting) == 3)
    (fetched,) = await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)
    told: list[tuple[str, bytes]] = []
    connection.session().client.subscribe(
        f"{fetched.receipt.rsplit('.', 5)[0]}.>",
        lambda subject, reply, headers, body: told.append((subject, body)),
    )

    await consumer.keep([fetched])

    await until(lambda: len(told) == 3)
    assert told[0][0] == fetched.receipt
    assert len({subject for subject, _ in told}) == 3
    assert {body for _, body in told} == {b"+WPI"}
    await consumer.close()


async def test_acknowledgements_go_together_and_before_whoever_made_them_leaves(connection: NatsConnection) -> None:
    space = f"noetl.events.{uuid4().hex}"
    wanted = spec(f"{space}.>")
    leaving = NatsPullConsumer(connection, wanted)
    await NatsPublisher(connection).publish_batch([message(space, number) for number in range(3)])
    for _ in range(3):
        await leaving.ack(await leaving.fetch(batch=1, wait_seconds=LONG_SECONDS))
    await leaving.close()

    info = await connection.session().client.jsm().consumer_info(EVENTS_STREAM, wanted.durable)

    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, info.delivered.stream_seq)


async def test_acknowledgements_that_nothing_follows_are_sent_by_themselves(connection: NatsConnection) -> None:
    space = f"noetl.events.{uuid4().hex}"
    wanted = spec(f"{space}.>")
    consumer = NatsPullConsumer(connection, wanted)
    await NatsPublisher(connection).publish_batch([message(space, 1)])
    manager = connection.session().client.jsm()

    async def pending() -> int:
        info = await manager.consumer_info(EVENTS_STREAM, wanted.durable)
        return int(info.num_ack_pending or 0)

    deliveries = await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)
    assert await pending() == 1
    await consumer.ack(deliveries)

    async def is_settled() -> bool:
        return await pending() == 0

    await until(is_settled)
    await consumer.close()


async def test_an_acknowledgement_that_holds_back_what_comes_next_does_not_wait_for_others(
    connection: NatsConnection,
) -> None:
    space = f"noetl.events.{uuid4().hex}"
    consumer = NatsPullConsumer(connection, spec(f"{space}.>", max_ack_pending=1))
    await NatsPublisher(connection).publish_batch([message(space, 1)])

    await consumer.ack(await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS))

    assert consumer._acks == []
    await consumer.close()


async def test_a_consumer_of_what_is_new_hears_nothing_old(connection: NatsConnection) -> None:
    space = f"noetl.events.{uuid4().hex}"
    publisher = NatsPublisher(connection)
    await publisher.publish_batch([message(space, 1)])
    consumer = NatsPullConsumer(connection, spec(f"{space}.>", start=Start.NEW))
    assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()

    await publisher.publish_batch([message(space, 2)])

    assert [delivery.body for delivery in await fetch_all(consumer, 1)] == [b"body 2"]


async def test_a_consumer_that_vanished_is_made_again_and_misses_nothing_since_the_last_delivery(
    connection: NatsConnection,
) -> None:
    space = f"noetl.events.{uuid4().hex}"
    publisher = NatsPublisher(connection)
    wanted = spec(f"{space}.>", start=Start.NEW)
    consumer = NatsPullConsumer(connection, wanted)
    assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()
    await publisher.publish_batch([message(space, 1)])
    await fetch_all(consumer, 1)

    await connection.session().client.jsm().delete_consumer(EVENTS_STREAM, wanted.durable)
    await publisher.publish_batch([message(space, 2)])

    bodies: list[bytes] = []
    while b"body 2" not in bodies:
        deliveries = await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)
        assert deliveries
        bodies += [delivery.body for delivery in deliveries]
        await consumer.ack(deliveries)


async def test_two_who_wait_at_once_both_wait_no_longer_than_they_said(connection: NatsConnection) -> None:
    consumer = NatsPullConsumer(connection, spec(f"noetl.events.{uuid4().hex}.>"))

    waiting = [consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) for _ in range(2)]

    assert await asyncio.wait_for(asyncio.gather(*waiting), LONG_SECONDS) == [(), ()]
    await consumer.close()


async def test_a_waiting_fetch_survives_the_removal_of_its_consumer(connection: NatsConnection) -> None:
    space = f"noetl.events.{uuid4().hex}"
    wanted = spec(f"{space}.>")
    consumer = NatsPullConsumer(connection, wanted)
    assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()
    waiting = asyncio.create_task(consumer.fetch(batch=1, wait_seconds=LONG_SECONDS))
    await asyncio.sleep(0)

    await connection.session().client.jsm().delete_consumer(EVENTS_STREAM, wanted.durable)
    await NatsPublisher(connection).publish_batch([message(space, 1)])

    assert [delivery.body for delivery in await waiting] == [b"body 1"]


async def test_a_work_queue_forgets_what_was_acknowledged_and_gives_the_rest_to_whoever_asks(
    connection: NatsConnection,
) -> None:
    subject = f"noetl.work.{uuid4().hex}.command"
    publisher = NatsPublisher(connection)
    shared = ConsumerSpec(
        stream=WORK_STREAM, durable=f"test-{uuid4().hex}", subjects=(subject,), start=Start.ALL, shared=True
    )
    first, second = (NatsPullConsumer(connection, shared) for _ in range(2))
    await publisher.publish_batch(
        [Message(subject=subject, message_id=f"{subject}/{number}", body=b"") for number in range(3)]
    )

    await fetch_all(first, 1)
    await fetch_all(second, 2)

    assert await first.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()
    manager = connection.session().client.jsm()
    await until(lambda: has_messages(manager, subject, 0))
    await manager.delete_consumer(WORK_STREAM, shared.durable)


async def has_messages(manager: JetStreamManager, subject: str, number: int) -> bool:
    info = await manager.stream_info(WORK_STREAM, subjects_filter=subject)
    return sum((info.state.subjects or {}).values()) == number


async def numbers_up_to(consumer: NatsPullConsumer, last: int) -> list[int]:
    numbers: list[int] = []
    while last not in numbers:
        deliveries = await consumer.fetch(batch=100, wait_seconds=LONG_SECONDS)
        assert deliveries, f"nothing came after {numbers}"
        await consumer.ack(deliveries)
        numbers += [int(delivery.body.split()[1]) for delivery in deliveries]
    return numbers


class TestWithoutNats:
    async def test_publishing_and_fetching_are_unavailable_and_resume_when_it_is_back(
        self, restartable: EmbeddedNats
    ) -> None:
        reported: list[NatsEvent] = []
        async with NatsConnection(
            restartable.url, name="test", report=lambda event, detail: reported.append(event)
        ) as connection:
            await connection.wait_connected(timeout_seconds=LONG_SECONDS)
            publisher = NatsPublisher(connection)
            consumer = NatsPullConsumer(connection, spec("noetl.events.>"))
            await publisher.publish_batch([message("noetl.events.a", 1)])
            await fetch_all(consumer, 1)

            await asyncio.to_thread(restartable.stop)
            await until(lambda: not connection.connected)
            with pytest.raises(Unavailable):
                await publisher.publish_batch([message("noetl.events.a", 2)])
            with pytest.raises(Unavailable):
                await consumer.fetch(batch=1, wait_seconds=LONG_SECONDS)

            await asyncio.to_thread(restartable.start)
            await connection.wait_connected(timeout_seconds=LONG_SECONDS)
            await publisher.publish_batch([message("noetl.events.a", number) for number in (1, 2)])
            assert (await numbers_up_to(consumer, 2))[-1] == 2
        assert reported.count(NatsEvent.CONNECTED) == 2
        assert NatsEvent.DISCONNECTED in reported

    async def test_a_fetch_that_waits_is_told_at_once_when_nats_dies(self, restartable: EmbeddedNats) -> None:
        async with NatsConnection(restartable.url, name="test") as connection:
            await connection.wait_connected(timeout_seconds=LONG_SECONDS)
            consumer = NatsPullConsumer(connection, spec("noetl.events.>"))
            assert await consumer.fetch(batch=1, wait_seconds=SHORT_SECONDS) == ()
            waiting = asyncio.create_task(consumer.fetch(batch=1, wait_seconds=10 * LONG_SECONDS))
            await asyncio.sleep(0)

            await asyncio.to_thread(restartable.kill)

            with pytest.raises(Unavailable):
                await asyncio.wait_for(waiting, LONG_SECONDS)

    async def test_what_a_lost_session_took_with_it_comes_again_at_once_and_in_order(
        self, restartable: EmbeddedNats
    ) -> None:
        async with NatsConnection(restartable.url, name="test") as connection:
            session = await connection.wait_connected(timeout_seconds=LONG_SECONDS)
            publisher = NatsPublisher(connection)
            consumer = NatsPullConsumer(connection, spec("noetl.events.>"))
            await publisher.publish_batch([message("noetl.events.a", number) for number in range(10)])
            await fetch_all(consumer, 3)
            assert await consumer.fetch(batch=2, wait_seconds=LONG_SECONDS)  # and never acknowledged

            await asyncio.to_thread(restartable.restart)
            await until(lambda: session.lost.is_set() and connection.connected)
            await publisher.publish_batch([message("noetl.events.a", 10)])

            numbers = await numbers_up_to(consumer, 10)
            assert numbers == list(range(numbers[0], 11))
            assert numbers[0] <= 3  # lower if an acknowledgement got lost with the session

    async def test_streams_that_vanished_with_the_disk_are_made_again(self, restartable: EmbeddedNats) -> None:
        async with NatsConnection(restartable.url, name="test") as connection:
            await connection.wait_connected(timeout_seconds=LONG_SECONDS)
            publisher = NatsPublisher(connection, ack_timeout_seconds=1.0)
            await publisher.publish_batch([message("noetl.events.a", 1)])

            await connection.session().client.jsm().delete_stream(EVENTS_STREAM)
            with pytest.raises(Unavailable):
                await publisher.publish_batch([message("noetl.events.a", 2)])
            await publisher.publish_batch([message("noetl.events.a", 2)])

            info = await connection.session().client.jsm().stream_info(EVENTS_STREAM)
            assert info.state.messages == 1

    async def test_a_process_may_start_before_nats(self, restartable: EmbeddedNats) -> None:
        await asyncio.to_thread(restartable.stop)
        async with NatsConnection(restartable.url, name="test") as connection:
            with pytest.raises(Unavailable):
                await connection.wait_connected(timeout_seconds=SHORT_SECONDS)
            with pytest.raises(Unavailable):
                connection.session()

            await asyncio.to_thread(restartable.start)

            await connection.wait_connected(timeout_seconds=LONG_SECONDS)

    async def test_broadcasts_are_heard_again_after_a_restart(self, restartable: EmbeddedNats) -> None:
        heard: list[bytes] = []

        async def receive(body: bytes) -> None:
            heard.append(body)

        async with NatsConnection(restartable.url, name="test") as connection:
            await connection.subscribe("noetl.control.cancel", receive)
            before = await connection.wait_connected(timeout_seconds=LONG_SECONDS)
            await asyncio.to_thread(restartable.restart)
            await until(lambda: before.lost.is_set() and connection.connected)
            session = connection.session()
            session.client.publish("noetl.control.cancel", b"7")

            await until(lambda: heard == [b"7"])

    async def test_a_wrong_token_is_reported_and_tried_again(self, restartable: EmbeddedNats) -> None:
        details: list[str] = []
        host = restartable.url.rpartition("@")[2]
        async with NatsConnection(
            host, name="test", token="wrong", report=lambda event, detail: details.append(detail)
        ) as connection:
            await until(lambda: sum("uthorization" in detail for detail in details) > 1)

            assert not connection.connected


@pytest.fixture
def own_streams() -> tuple[StreamSpec, ...]:
    name = uuid4().hex
    return (
        StreamSpec(name=f"A_{name}", subjects=(f"a.{name}.>",), max_age_seconds=300.0),
        StreamSpec(
            name=f"B_{name}",
            subjects=(f"b.{name}.>",),
            max_age_seconds=60.0,
            duplicate_window_seconds=30.0,
            work_queue=True,
            in_memory=True,
        ),
    )


class TestProvisioning:
    async def test_several_replicas_at_once_make_the_streams_once(
        self, nats_server: NatsBackend, own_streams: tuple[StreamSpec, ...]
    ) -> None:
        connections = [NatsConnection(nats_server.url, name=f"test-{number}") for number in range(5)]
        for connection in connections:
            connection.start()
        sessions = [await connection.wait_connected(timeout_seconds=LONG_SECONDS) for connection in connections]

        await asyncio.gather(*(provision_streams(session.client, own_streams) for session in sessions))

        configs = [await config_of(sessions[0].client, wanted.name) for wanted in own_streams]
        assert [(config.retention, config.storage) for config in configs] == [
            (RetentionPolicy.LIMITS, StorageType.FILE),
            (RetentionPolicy.WORK_QUEUE, StorageType.MEMORY),
        ]
        for connection in connections:
            await connection.close()

    async def test_what_differs_is_corrected_and_what_an_operator_added_stays(
        self, connection: NatsConnection, own_streams: tuple[StreamSpec, ...]
    ) -> None:
        client = connection.session().client
        wanted = own_streams[0]
        await client.jsm().add_stream(
            StreamConfig(
                name=wanted.name, subjects=[f"{wanted.name}.old"], max_bytes=1_000_000, storage=StorageType.FILE
            )
        )

        await provision_streams(client, own_streams)

        config = await config_of(client, wanted.name)
        assert (config.subjects, config.max_age, config.duplicate_window) == ([*wanted.subjects], 300.0, 120.0)
        assert config.max_bytes == 1_000_000

    async def test_a_stream_that_cannot_become_what_is_needed_is_refused(
        self, connection: NatsConnection, own_streams: tuple[StreamSpec, ...]
    ) -> None:
        client = connection.session().client
        await client.jsm().add_stream(
            StreamConfig(name=own_streams[0].name, subjects=[f"{own_streams[0].name}.old"], storage=StorageType.MEMORY)
        )

        with pytest.raises(StreamMismatch):
            await provision_streams(client, own_streams)

    async def test_our_own_streams_can_be_provisioned_again_and_again(self, connection: NatsConnection) -> None:
        client = connection.session().client
        for _ in range(2):
            await provision_streams(client)

        for name in (EVENTS_STREAM, WORK_STREAM, CONTROL_STREAM):
            assert (await config_of(client, name)).subjects == list(
                next(known.subjects for known in STREAMS if known.name == name)
            )


async def test_what_a_full_stream_does_not_take_is_told_at_once(
    connection: NatsConnection, own_streams: tuple[StreamSpec, ...]
) -> None:
    client = connection.session().client
    wanted = own_streams[0]
    await provision_streams(client, [wanted])
    full = (await config_of(client, wanted.name)).evolve(max_msgs=2, discard=DiscardPolicy.NEW)
    await client.jsm().update_stream(full)
    publisher = NatsPublisher(connection, streams=[wanted], ack_timeout_seconds=LONG_SECONDS)
    subject = wanted.subjects[0].replace(">", "x")
    began_at = time.monotonic()

    with pytest.raises(PublishFailed, match="maximum messages exceeded") as failure:
        await publisher.publish_batch([Message(subject=subject, message_id=name, body=b"") for name in "abcd"])

    assert failure.value.acknowledged == {"a", "b"}
    assert time.monotonic() - began_at < LONG_SECONDS / 2


async def config_of(client: NatsClient, name: str) -> StreamConfig:
    return (await client.jsm().stream_info(name)).config
