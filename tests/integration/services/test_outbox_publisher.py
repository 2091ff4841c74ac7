"""A real publisher process between a real PostgreSQL and a real NATS, killed and cut off in every way."""

import asyncio
import json
import secrets
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import ConsumerSpec, Start
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_adapters.postgres.migrate import migrate
from noetl_contracts.messages import stored_event
from noetl_contracts.subjects import EVENTS_STREAM, TRACEPARENT
from noetl_core.envelope import verify_link
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Delivery
from noetl_testkit.backends import NatsBackend, embedded_nats, embedded_postgres
from noetl_testkit.outbox_rows import TRACE, OutboxEvent, history, write_outbox
from noetl_testkit.service_process import ServiceProcess
from noetl_testkit.until import until

SHORT_LEASES = {"NOETL_OUTBOX_LEASE_SECONDS": "2", "NOETL_OUTBOX_PUBLISH_SECONDS": "0.5"}
NEVER_POLL_SECONDS = 60.0


class Seen:
    """What a consumer got, in the order in which it came."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._arrival = asyncio.Event()

    def __len__(self) -> int:
        return len(self.deliveries)

    def add(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries += deliveries
        self._arrival.set()

    async def reach(self, number: int, *, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while len(self) < number:
                self._arrival.clear()
                await self._arrival.wait()

    def versions(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for delivery in self.deliveries:
            execution_id = int(delivery.subject.split(".")[4])
            found.setdefault(execution_id, []).append(int(delivery.headers["Noetl-Stream-Version"]))
        return found

    def is_complete(self, *, executions: int, length: int) -> bool:
        if len(self) < executions * length:
            return False
        found = self.versions()
        return len(found) == executions and all(len(set(versions)) == length for versions in found.values())

    def assert_in_order(self) -> None:
        """A version may come again; one that was not there yet comes only after all below it."""
        for execution_id, versions in self.versions().items():
            highest = 0
            for version in versions:
                assert version <= highest + 1, f"{execution_id}: {version} came when only {highest} had come"
                highest = max(highest, version)


class Scene:
    """A database, a bus and publishers, with names of its own on what all tests share."""

    def __init__(self, *, dsn: str, nats_url: str, directory: Path) -> None:
        self.dsn = dsn
        self.nats_url = nats_url
        # A message id counts once on a bus, whoever uses it, so executions are never the same ones.
        self._first_execution = secrets.randbelow(2**42)
        self._tenant = uuid4().hex
        self._directory = directory
        self._tokens_file = directory / "tokens.json"
        self._tokens_file.write_text('{"tokens": []}', "utf-8")
        self._processes: list[ServiceProcess] = []

    def history(self, number: int, length: int) -> list[OutboxEvent]:
        return history(self._first_execution + number, length, tenant_id=self._tenant)

    def interleaved(self, executions: int, length: int) -> list[OutboxEvent]:
        histories = [self.history(number, length) for number in range(executions)]
        return [event for step in zip(*histories, strict=True) for event in step]

    def publisher(self, name: str = "publisher-0", **settings: str) -> ServiceProcess:
        env = {
            "NOETL_POSTGRES_DSN": f"{self.dsn}?role=noetl_publisher",
            "NOETL_NATS_URL": self.nats_url,
            "NOETL_TOKENS_FILE": str(self._tokens_file),
            "NOETL_OUTBOX_POLL_SECONDS": "0.2",
            **settings,
        }
        process = ServiceProcess("noetl_outbox_publisher", env, directory=self._directory, name=name)
        self._processes.append(process)
        return process

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()

    async def commit(self, events: Sequence[OutboxEvent], *, per_commit: int = 1_000, pause: float = 0.0) -> None:
        connection = await asyncpg.connect(self.dsn)
        for start in range(0, len(events), per_commit):
            await write_outbox(connection, events[start : start + per_commit])
            await asyncio.sleep(pause)
        await connection.close()

    async def waiting_rows(self) -> int:
        return int(await self._value("SELECT count(*) FROM noetl.outbox"))

    async def is_drained(self) -> bool:
        return await self.waiting_rows() == 0

    async def owners(self) -> dict[str, int]:
        counted = await self._value(
            "SELECT coalesce(json_object_agg(name, shards), '{}') FROM ("
            "SELECT split_part(owner, '/', 1) AS name, count(*) AS shards "
            "FROM noetl.outbox_lease WHERE owner IS NOT NULL GROUP BY 1) AS held"
        )
        return dict(json.loads(str(counted)))

    async def are_owners(self, expected: dict[str, int]) -> bool:
        return await self.owners() == expected

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[Seen]:
        """Everything of this scene from the beginning, through every absence of the bus."""
        seen = Seen()
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(NatsConnection(self.nats_url, name="test-consumer"))
            consumer = NatsPullConsumer(
                connection,
                ConsumerSpec(
                    stream=EVENTS_STREAM,
                    durable=f"test-{uuid4().hex}",
                    subjects=(f"noetl.events.{self._tenant}.>",),
                    start=Start.ALL,
                    inactive_seconds=60.0,
                ),
            )
            task = asyncio.create_task(_consume(consumer, seen))
            try:
                yield seen
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _value(self, query: str) -> Any:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()


async def _consume(consumer: NatsPullConsumer, seen: Seen) -> None:
    while True:
        try:
            deliveries = await consumer.fetch(batch=500, wait_seconds=10.0)
            seen.add(deliveries)
            await consumer.ack(deliveries)
        except Unavailable:
            await asyncio.sleep(0.02)


@pytest.fixture
async def scene(installed_dsn: str, nats_server: NatsBackend, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(dsn=installed_dsn, nats_url=nats_server.url, directory=tmp_path)
    yield scene
    scene.kill_all()


def get(process: ServiceProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port('ops')}{path}") as answer:
        return str(answer.read().decode())


def published(process: ServiceProcess) -> float:
    lines = [line for line in get(process, "/metrics").splitlines() if line.startswith("noetl_outbox_published_total")]
    return float(lines[0].split()[1])


def is_ready(process: ServiceProcess) -> bool:
    try:
        return bool(json.loads(get(process, "/health/ready"))["status"] == "ready")
    except OSError:
        return False


async def test_what_is_published_is_the_event_as_it_was_stored(scene: Scene) -> None:
    events = scene.history(0, 5)
    with scene.publisher():
        async with scene.consuming() as seen:
            await scene.commit(events)
            await seen.reach(5)
            await until(scene.is_drained)

    received = [stored_event(delivery.body, delivery.headers) for delivery in seen.deliveries]
    assert received == [event.stored for event in events]
    for event in received:
        verify_link(event)
    assert {delivery.headers[TRACEPARENT] for delivery in seen.deliveries} == {TRACE}
    assert [delivery.headers["Nats-Msg-Id"] for delivery in seen.deliveries] == [
        str(event.event_id) for event in events
    ]


@pytest.mark.parametrize("successor", ["publisher-0", "publisher-1"])
async def test_killed_in_the_middle_of_draining_every_event_still_arrives_in_order(
    scene: Scene, successor: str
) -> None:
    await scene.commit(scene.interleaved(200, 100))
    settings = {**SHORT_LEASES, "NOETL_OUTBOX_BATCH_ROWS": "100"}
    async with scene.consuming() as seen:
        for kill_after in (500, 2_000, 5_000):
            publisher = scene.publisher(**settings).start()
            await seen.reach(kill_after)
            publisher.kill()
            assert await scene.waiting_rows() > 0, "it was not killed in the middle"

        with scene.publisher(successor, **settings):
            await until(lambda: seen.is_complete(executions=200, length=100), seconds=60)
            await until(scene.is_drained)

    seen.assert_in_order()


async def test_replicas_that_come_and_go_share_the_work_and_reorder_nothing(scene: Scene) -> None:
    settings = {**SHORT_LEASES, "NOETL_OUTBOX_BATCH_ROWS": "50"}
    async with scene.consuming() as seen:
        first = scene.publisher("publisher-0", **settings).start()
        # A load that lasts while replicas come and go.
        writing = asyncio.create_task(scene.commit(scene.interleaved(100, 200), per_commit=100, pause=0.03))
        await seen.reach(1)

        second = scene.publisher("publisher-1", **settings).start()
        await until(lambda: scene.are_owners({"publisher-0": 32, "publisher-1": 32}))
        await seen.reach(len(seen) + 1_000)
        assert all(published(process) > 0 for process in (first, second))

        assert first.stop() == 0
        assert "publisher-0" not in await scene.owners()
        await writing
        await until(lambda: seen.is_complete(executions=100, length=200), seconds=60)
        assert second.stop() == 0

    seen.assert_in_order()
    assert await scene.owners() == {}


async def test_a_publisher_that_stood_still_until_others_had_taken_over_reorders_nothing(scene: Scene) -> None:
    settings = {**SHORT_LEASES, "NOETL_OUTBOX_BATCH_ROWS": "50"}
    await scene.commit(scene.interleaved(100, 100))
    async with scene.consuming() as seen:
        frozen = scene.publisher("publisher-0", **settings).start()
        await seen.reach(500)
        frozen.freeze()
        assert await scene.waiting_rows() > 0, "it was not stopped in the middle"

        other = scene.publisher("publisher-1", **settings).start()
        await until(lambda: scene.are_owners({"publisher-1": 64}))
        await seen.reach(len(seen) + 500)
        frozen.thaw()

        await until(lambda: seen.is_complete(executions=100, length=100), seconds=60)
        await until(lambda: scene.are_owners({"publisher-0": 32, "publisher-1": 32}))
        assert (frozen.stop(), other.stop()) == (0, 0)

    seen.assert_in_order()


async def test_while_nats_is_away_the_outbox_grows_and_afterwards_everything_drains_in_order(scene: Scene) -> None:
    events = scene.interleaved(50, 300)
    with embedded_nats() as nats:
        scene.nats_url = nats.url
        async with scene.consuming() as seen:
            publisher = scene.publisher(NOETL_OUTBOX_BATCH_ROWS="100").start()
            for begin in range(0, len(events), 5_000):
                await scene.commit(events[begin : begin + 2_500])
                await seen.reach(begin + 500)
                await asyncio.to_thread(nats.stop)  # in the middle of a batch, as often as not
                await scene.commit(events[begin + 2_500 : begin + 5_000])
                assert await scene.waiting_rows() >= 2_500
                await asyncio.to_thread(nats.start)
            await until(lambda: seen.is_complete(executions=50, length=300), seconds=60)
            await until(scene.is_drained)
        assert "outbox.stalled" in publisher.log_file.read_text("utf-8")
        assert publisher.stop() == 0

    seen.assert_in_order()


async def test_a_database_that_was_away_is_no_reason_to_end(scene: Scene) -> None:
    with embedded_postgres() as postgres:
        scene.dsn = postgres.dsn()
        await migrate(scene.dsn, shard_count=64)
        async with scene.consuming() as seen:
            publisher = scene.publisher().start()
            for number in range(3):
                await scene.commit(scene.history(number, 3))
                await seen.reach(3 * (number + 1))
                await asyncio.to_thread(postgres.restart)
            assert publisher.running
            publisher.kill()


async def test_a_commit_wakes_the_publisher_long_before_it_would_look(scene: Scene) -> None:
    events = scene.history(0, 200)
    latencies: list[float] = []
    with scene.publisher(NOETL_OUTBOX_POLL_SECONDS=str(NEVER_POLL_SECONDS)) as publisher:
        await until(lambda: is_ready(publisher))
        connection = await asyncpg.connect(scene.dsn)
        async with scene.consuming() as seen:
            for number, event in enumerate(events, start=1):
                await write_outbox(connection, [event])
                committed_at = time.monotonic()
                await seen.reach(number)
                latencies.append(time.monotonic() - committed_at)
        await connection.close()

    median_ms = statistics.median(latencies) * 1000
    assert max(latencies) < NEVER_POLL_SECONDS / 4, f"median {median_ms:.1f} ms"


async def test_once_drains_until_the_outbox_is_empty_and_exits(scene: Scene) -> None:
    await scene.commit(scene.interleaved(10, 200))

    code = await asyncio.to_thread(scene.publisher().run, "--once")

    assert code == 0
    assert await scene.is_drained()
    assert await scene.owners() == {}
    async with scene.consuming() as seen:
        await until(lambda: seen.is_complete(executions=10, length=200))
    seen.assert_in_order()


async def test_once_fails_in_time_when_it_cannot_publish(scene: Scene) -> None:
    await scene.commit(scene.history(0, 3))
    scene.nats_url = "nats://127.0.0.1:9"
    publisher = scene.publisher()

    code = await asyncio.to_thread(publisher.run, "--once", "--timeout-seconds", "1")

    assert code == 1
    assert "the outbox was not empty after 1 s" in publisher.log_file.read_text("utf-8")
    assert await scene.waiting_rows() == 3


async def test_another_number_of_shards_than_the_installation_has_ends_the_process(scene: Scene) -> None:
    publisher = scene.publisher(NOETL_SHARD_COUNT="32")

    assert await asyncio.to_thread(publisher.run) == 2
    assert "this installation has 64 shards, NOETL_SHARD_COUNT says 32" in publisher.log_file.read_text("utf-8")


async def test_help_names_every_option(scene: Scene) -> None:
    publisher = scene.publisher()

    assert await asyncio.to_thread(publisher.run, "--help") == 0
    assert {"--once", "--timeout-seconds"} <= set(publisher.log_file.read_text("utf-8").split())


async def test_health_and_metrics_are_served(scene: Scene) -> None:
    with scene.publisher() as publisher:
        await until(lambda: is_ready(publisher))
        await scene.commit(scene.history(0, 3))
        await until(lambda: published(publisher) == 3)

        metrics = get(publisher, "/metrics")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{publisher.port('grpc')}") as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert "noetl_outbox_held_shards 64.0" in metrics
    assert "noetl_outbox_commit_to_ack_seconds_count" in metrics
