"""Real projector processes between a real PostgreSQL, a real NATS and a real api; the bus does its worst."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from nats.js.errors import NotFoundError
from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.publisher import NatsPublisher
from noetl_adapters.postgres.projections import PostgresProjections
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient, ProjectionClient, SnapshotClient
from noetl_contracts.messages import event_headers
from noetl_contracts.subjects import EVENTS_STREAM, event_subject
from noetl_core.checkpoints.events import CheckpointCommitted
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import NoetlError, NotFound
from noetl_core.execution_view import execution_view
from noetl_core.fold import empty
from noetl_core.ids import Snowflake
from noetl_core.ports.bus import Message, PublishFailed
from noetl_core.ports.event_log import Scope
from noetl_core.recorded import record
from noetl_core.replay.history import Replay
from noetl_core.replay.snapshots import Rules, open_snapshot
from noetl_core.sharding import shard_of
from noetl_core.surfaces.checksums import checksum_document
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_core.upcasting.releases import UPCASTERS
from noetl_servicekit.code_version import code_version
from noetl_servicekit.tokens import token_sha256
from noetl_testkit.backends import (
    NatsBackend,
    PostgresBackend,
    TemplateDatabase,
    embedded_nats,
    fresh_database,
)
from noetl_testkit.compliance.projections import stored_rows
from noetl_testkit.histories import (
    TRACE,
    History,
    choices,
    claimed,
    drawn_history,
    initialized,
    issued,
    shuffled_delivery,
    started,
    two_steps,
)
from noetl_testkit.local_stack import environment_of_nobody
from noetl_testkit.other_releases import with_another_upcaster
from noetl_testkit.service_process import ServiceProcess
from noetl_testkit.telling_histories import telling_history
from noetl_testkit.until import until

RUNBOOK = Path(__file__).parents[3] / "docs" / "runbooks" / "projector.md"
SCOPE = Scope(tenant_id="default", organization_id="default")
SHORT_LEASES = {"NOETL_SHARD_LEASE_SEC": "1.5", "NOETL_SHARD_HEARTBEAT_SEC": "0.3"}
_ids = Snowflake(7)


def new_id() -> int:
    return _ids.next(int(time.time() * 1000))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("projector")


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresBackend, installed_template: TemplateDatabase) -> Iterator[str]:
    with fresh_database(postgres_server, installed_template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def api(dsn: str, directory: Path) -> Iterator[ServiceProcess]:
    tokens = {
        "tokens": [
            {
                "name": "service",
                "token_sha256": token_sha256("service"),
                "tenant_id": "*",
                "organization_id": "*",
                "role": "service",
            }
        ]
    }
    (directory / "tokens.json").write_text(json.dumps(tokens))
    env = {
        "NOETL_POSTGRES_DSN": f"{dsn}?role=noetl_api",
        "NOETL_PAYLOAD_URL": (directory / "payloads").as_uri(),
        "NOETL_PROJECTOR_ADDRESS": "127.0.0.1:1",
        "NOETL_TOKEN": "service",
        "NOETL_TOKENS_FILE": str(directory / "tokens.json"),
    }
    with ServiceProcess("noetl_api", env, directory=directory, name="api") as process:
        yield process


class Scene:
    """A log that is appended to, a bus that the test publishes to as badly as it likes, and projectors."""

    def __init__(self, *, dsn: str, directory: Path, api_port: int, nats_url: str) -> None:
        self.dsn = dsn
        self._directory = directory
        self._api_address = f"127.0.0.1:{api_port}"
        self._nats_url = nats_url
        self._run = uuid4().hex[:8]
        self._processes: list[ServiceProcess] = []
        self.log: EventLogClient
        self.publisher: NatsPublisher

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Scene"]:
        async with (
            open_channel(self._api_address, token="service") as channel,
            NatsConnection(self._nats_url, name="test") as bus,
        ):
            self.log = EventLogClient(channel)
            self.publisher = NatsPublisher(bus)
            self._bus = bus
            await bus.wait_connected(timeout_seconds=60)
            try:
                yield self
            finally:
                for process in self._processes:
                    process.kill()

    async def listens(self, process: ServiceProcess) -> bool:
        """Whether a projector owns everything, and hears of it."""
        if owned(process) < 64 or summary(process)["bus_is_away"]:
            return False
        manager = self._bus.session().client.jsm()
        try:
            consumer = await manager.consumer_info(EVENTS_STREAM, f"projector-{process.name}")
        except NotFoundError:
            return False
        return len(consumer.config.filter_subjects or ()) == 64

    def projector(self, name: str = "a", **settings: str) -> ServiceProcess:
        env = {
            "NOETL_POSTGRES_DSN": f"{self.dsn}?role=noetl_projector",
            "NOETL_API_ADDRESS": self._api_address,
            "NOETL_NATS_URL": self._nats_url,
            "NOETL_TOKEN": "service",
            "NOETL_TOKENS_FILE": str(self._directory / "tokens.json"),
            "NOETL_HEAD_POLL_SECONDS": "0.5",
            **SHORT_LEASES,
            **settings,
        }
        process = ServiceProcess("noetl_projector", env, directory=self._directory, name=f"p-{self._run}-{name}")
        self._processes.append(process)
        return process

    def api_of(self, projector: ServiceProcess) -> ServiceProcess:
        """Another replica, which asks this projector."""
        env = {
            "NOETL_POSTGRES_DSN": f"{self.dsn}?role=noetl_api",
            "NOETL_PAYLOAD_URL": (self._directory / "payloads").as_uri(),
            "NOETL_PROJECTOR_ADDRESS": f"127.0.0.1:{projector.port('grpc')}",
            "NOETL_TOKEN": "service",
            "NOETL_TOKENS_FILE": str(self._directory / "tokens.json"),
        }
        return ServiceProcess("noetl_api", env, directory=self._directory, name=f"api-{self._run}")

    async def append(self, *histories: History) -> list[tuple[int, StoredEvent]]:
        """Append histories, each transaction by transaction, all at once."""
        stored = await asyncio.gather(*(history.append_to(self.log) for history in histories))
        return [
            (history.execution_id, event) for history, events in zip(histories, stored, strict=True) for event in events
        ]

    async def publish(self, events: Sequence[tuple[int, StoredEvent]]) -> None:
        """As the publisher would, but without message ids that would save the projector from doubles."""
        await self.publisher.publish_batch(
            [
                Message(
                    subject=subject_of(execution_id),
                    message_id=uuid4().hex,
                    body=event.body,
                    headers=event_headers(event, TRACE),
                )
                for execution_id, event in events
            ]
        )

    async def expected(self, execution_id: int) -> SurfaceFold:
        """What a straight fold of the log gives."""
        page = await self.log.read(None, execution_id, limit=1000)
        assert len(page.events) == page.head_version
        replayed = SurfaceFold(empty(execution_id))
        replayed.add_all([record(event) for event in page.events])
        return replayed

    async def versions(self, *execution_ids: int) -> dict[int, int]:
        rows = await self.fetch(
            "SELECT execution_id, stream_version FROM noetl.execution WHERE execution_id = ANY($1)", execution_ids
        )
        return {row[0]: row[1] for row in rows}

    async def settled(self, *histories: History, seconds: float = 60.0) -> None:
        """Wait until every row has reached the end of its history."""
        wanted = {history.execution_id: len(history.stored) for history in histories}

        async def reached() -> bool:
            return await self.versions(*wanted) == wanted

        await until(reached, seconds=seconds)

    async def assert_rows(self, *histories: History) -> None:
        """Every row is the row of a straight fold: the execution's, and those of all that is in it."""
        for history in histories:
            replayed = await self.expected(history.execution_id)
            state = replayed.state
            view = execution_view(state)
            (row,) = await self.fetch("SELECT * FROM noetl.execution WHERE execution_id = $1", history.execution_id)
            assert (row["status"], row["stream_version"]) == (view.status, view.stream_version)
            assert (row["last_event_type"], row["last_node_name"] or "") == (view.last_event_type, view.last_node_name)
            assert (row["start_time"], row["end_time"]) == (view.start_time, view.end_time)
            assert json.loads(row["state"]) == view.state
            assert row["shard"] == shard_of(history.execution_id, 64)
            assert row["last_projected_event_id"] == state.last_event_id
            async with asyncpg.create_pool(self.dsn, min_size=1, max_size=1) as pool:
                store = PostgresProjections(pool)
                assert await stored_rows(store, history.execution_id) == replayed.changed()

    async def execute(self, statements: str, execution_id: int) -> None:
        """As the owner of the database, with `psql -v id=…`."""
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(statements.replace(":id", str(execution_id)))
        finally:
            await connection.close()

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn, server_settings={"timezone": "UTC"})
        try:
            rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
        finally:
            await connection.close()
        return rows


def subject_of(execution_id: int) -> str:
    return event_subject(
        tenant_id="default",
        organization_id="default",
        execution_id=execution_id,
        shard=shard_of(execution_id, 64),
    )


@pytest.fixture
async def scene(dsn: str, directory: Path, api: ServiceProcess, nats_server: NatsBackend) -> AsyncIterator[Scene]:
    scene = Scene(dsn=dsn, directory=directory, api_port=api.port("grpc"), nats_url=nats_server.url)
    async with scene.opened():
        yield scene


def get(process: ServiceProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port('ops')}{path}") as answer:
        return str(answer.read().decode())


def summary(process: ServiceProcess) -> dict[str, Any]:
    return dict(json.loads(get(process, "/summary")))


def metric(process: ServiceProcess, name: str) -> float:
    """Over all its labels."""
    lines = [line for line in get(process, "/metrics").splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def shards_of(process: ServiceProcess, gauge: str) -> set[str]:
    """Those that it shows."""
    return set(re.findall(rf'^{gauge}{{shard_id="(\d+)"}}', get(process, "/metrics"), re.MULTILINE))


async def until_owned(*expected: tuple[ServiceProcess, int]) -> None:
    """Wait until each projector owns as many shards as it should."""
    await until(lambda: all(owned(process) == number for process, number in expected), seconds=60)


def owned(process: ServiceProcess) -> int:
    return len(summary(process)["shards"])


@asynccontextmanager
async def queries(process: ServiceProcess) -> AsyncIterator[ProjectionClient]:
    async with open_channel(f"127.0.0.1:{process.port('grpc')}", token="service") as channel:
        yield ProjectionClient(channel)


def random_histories(choose: random.Random, number: int) -> list[History]:
    return [drawn_history(choose, execution_id=new_id(), moves=choose.randint(0, 12)) for _ in range(number)]


async def test_published_events_become_the_rows_of_a_straight_fold(scene: Scene) -> None:
    histories = [two_steps(History(new_id())) for _ in range(20)]
    with scene.projector(NOETL_HEAD_POLL_SECONDS="60") as projector:
        await until(lambda: scene.listens(projector), seconds=60)
        events = await scene.append(*histories)
        await scene.publish(events)
        await scene.settled(*histories)

        assert metric(projector, "noetl_projector_events_projected_total") == 20 * 18
        assert metric(projector, "noetl_projector_events_recovered_total") == 0
    await scene.assert_rows(*histories)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_the_bus_loses_doubles_and_reorders_the_rows_are_right(scene: Scene, seed: int) -> None:
    choose = choices(seed)
    histories = random_histories(choose, 12)
    with scene.projector() as projector:
        await until_owned((projector, 64))
        events = await scene.append(*histories)
        await scene.publish([] if seed == 3 else badly(choose, events))
        await scene.settled(*histories)
    await scene.assert_rows(*histories)


def badly(choose: random.Random, events: Sequence[tuple[int, StoredEvent]]) -> list[tuple[int, StoredEvent]]:
    owner = {event: execution_id for execution_id, event in events}
    return [(owner[event], event) for event in shuffled_delivery(choose, list(owner))]


async def test_the_last_event_of_an_execution_is_found_although_nobody_delivered_it(scene: Scene) -> None:
    history = two_steps(History(new_id()))
    with scene.projector() as projector:
        await until(lambda: scene.listens(projector), seconds=60)
        events = await scene.append(history)
        await scene.publish(events[:-1])
        await scene.settled(history)

        assert metric(projector, "noetl_projector_events_recovered_total") >= 1
    await scene.assert_rows(history)


async def test_a_projector_that_is_killed_again_and_again_loses_and_doubles_nothing(scene: Scene) -> None:
    """Killed whenever it has written something, so that some batch was written and not acknowledged."""
    choose = choices(5)
    histories = random_histories(choose, 60)
    events = await scene.append(*histories)
    projector = scene.projector()
    wanted = sum(len(history.stored) for history in histories)
    publishing = asyncio.create_task(publish_slowly(scene, badly(choose, events)))
    for _ in range(4):
        before = sum((await scene.versions(*(history.execution_id for history in histories))).values())
        projector.start()

        async def has_moved(before: int = before) -> bool:
            now = sum((await scene.versions(*(history.execution_id for history in histories))).values())
            return before < now or now == wanted

        await until(has_moved, seconds=60)
        projector.kill()
    await publishing
    projector.start()
    await scene.settled(*histories)
    await scene.assert_rows(*histories)


async def publish_slowly(scene: Scene, events: Sequence[tuple[int, StoredEvent]]) -> None:
    for start in range(0, len(events), 20):
        await until_published(scene, events[start : start + 20])
        await asyncio.sleep(0.05)


async def test_a_message_that_comes_again_after_its_row_was_written_changes_nothing(scene: Scene) -> None:
    history = two_steps(History(new_id()))
    with scene.projector(NOETL_HEAD_POLL_SECONDS="60") as projector:
        await until(lambda: scene.listens(projector), seconds=60)
        events = await scene.append(history)
        await scene.publish(events)
        await scene.settled(history)
        (before,) = await scene.fetch("SELECT xmin FROM noetl.execution WHERE execution_id = $1", history.execution_id)

        await scene.publish(events)
        await until(lambda: metric(projector, "noetl_projector_acknowledged_notifications_total") == 36, seconds=60)

        # The first delivery may be stale as well, where comparing heads was faster than the bus.
        assert metric(projector, "noetl_projector_events_stale_total") >= 18
        (after,) = await scene.fetch("SELECT xmin FROM noetl.execution WHERE execution_id = $1", history.execution_id)
        assert before == after, "the row was not even touched"


async def test_messages_that_are_no_events_are_put_aside_and_nobody_waits_for_them(scene: Scene) -> None:
    history = two_steps(History(new_id()))
    with scene.projector(NOETL_HEAD_POLL_SECONDS="60") as projector:
        await until(lambda: scene.listens(projector), seconds=60)
        events = await scene.append(history)
        forged = events[0][1]._replace(body=events[0][1].body.replace(b"default", b"another"))
        await scene.publish([(history.execution_id, forged), *events])
        await scene.settled(history)

        assert metric(projector, "noetl_projector_decode_errors_total") == 1
        assert metric(projector, "noetl_projector_terminated_notifications_total") == 1
    await scene.assert_rows(history)


async def test_an_execution_that_cannot_be_folded_is_set_aside_for_everybody_to_see(scene: Scene) -> None:
    broken = History(new_id()).add(initialized())
    broken.add(Draft(event_type="step.enter", idempotency_key="broken", node_name="load"))
    neighbour = two_steps(History(new_id()))
    with scene.projector(NOETL_HEAD_POLL_SECONDS="0.2") as projector:
        await until_owned((projector, 64))
        await scene.append(broken, neighbour)
        await scene.settled(neighbour)
        await until(lambda: str(broken.execution_id) in get(projector, "/summary"))
        await until(lambda: metric(projector, "noetl_projector_quarantined_executions") == 1)

        (shown,) = summary(projector)["quarantined"]
        assert shown["execution_id"] == str(broken.execution_id)
        assert "lacks 'activation'" in shown["reason"]
        assert "ready" in get(projector, "/health/ready")
    assert await scene.versions(broken.execution_id) == {broken.execution_id: 1}


async def test_two_projectors_share_the_shards_and_one_takes_over_when_the_other_is_killed(scene: Scene) -> None:
    histories = random_histories(choices(9), 30)
    with scene.projector("a") as one, scene.projector("b") as other:
        await until_owned((one, 32), (other, 32))
        events = await scene.append(*histories[:15])
        await scene.publish(events)
        await scene.settled(*histories[:15])

        other.kill()
        events = await scene.append(*histories[15:])
        await scene.publish(badly(choices(10), events))
        await until_owned((one, 64))
        await scene.settled(*histories[15:])
    await scene.assert_rows(*histories)


async def test_how_far_a_shard_is_is_shown_by_its_owner_alone(scene: Scene) -> None:
    gauges = ("noetl_projection_shard_lag_seconds", "noetl_checkpoint_shard_age_seconds")
    histories = random_histories(choices(17), 30)
    shards = {str(shard_of(history.execution_id, 64)) for history in histories}
    with scene.projector("a") as one:
        await until_owned((one, 64))
        await scene.publish(await scene.append(*histories))
        await until(lambda: all(shards_of(one, gauge) == shards for gauge in gauges), seconds=60)

        with scene.projector("b") as other:
            await until_owned((one, 32), (other, 32))
            left = shards & set(summary(one)["shards"])

            await until(lambda: all(shards_of(one, gauge) == left for gauge in gauges))


async def test_a_frozen_projector_that_wakes_up_deposed_harms_nothing(scene: Scene) -> None:
    histories = random_histories(choices(11), 20)
    with scene.projector("a") as sleeper, scene.projector("b") as other:
        await until_owned((sleeper, 32), (other, 32))
        sleeper.freeze()
        await until_owned((other, 64))
        await scene.publish(badly(choices(12), await scene.append(*histories)))
        await scene.settled(*histories)

        sleeper.thaw()
        await until_owned((sleeper, 32), (other, 32))
        await scene.assert_rows(*histories)


async def test_a_projector_that_starts_late_catches_up_from_the_heads(scene: Scene) -> None:
    histories = random_histories(choices(13), 40)
    await scene.append(*histories)
    with scene.projector() as projector:
        await scene.settled(*histories)
        await until_owned((projector, 64))
    await scene.assert_rows(*histories)
    rows = await scene.fetch("SELECT count(*) FROM noetl.projection_checkpoint WHERE caught_up_to IS NOT NULL")
    assert rows[0][0] == 64


async def test_a_row_that_somebody_removed_is_made_again_when_its_execution_moves(scene: Scene) -> None:
    history = two_steps(History(new_id()))
    with scene.projector() as projector:
        await until(lambda: scene.listens(projector), seconds=60)
        half = await scene.log.append(history.request(history.transactions[0], starts=True))
        await scene.publish([(history.execution_id, one.event) for one in half])
        await until(lambda: scene.versions(history.execution_id))
        await scene.fetch("DELETE FROM noetl.execution WHERE execution_id = $1", history.execution_id)

        for drafts in history.transactions[1:]:
            appended = await scene.log.append(history.request(drafts, starts=False))
            await scene.publish([(history.execution_id, one.event) for one in appended])
        await scene.settled(history)
    await scene.assert_rows(history)


async def test_while_the_bus_is_away_rows_follow_the_log_and_afterwards_the_bus_again(
    dsn: str, directory: Path, api: ServiceProcess
) -> None:
    with embedded_nats() as nats:
        scene = Scene(dsn=dsn, directory=directory, api_port=api.port("grpc"), nats_url=nats.url)
        async with scene.opened():
            first, second, third = ([two_steps(History(new_id())) for _ in range(5)] for _ in range(3))
            with scene.projector(NOETL_HEAD_POLL_SECONDS="60") as projector:
                await until(lambda: scene.listens(projector), seconds=60)
                await scene.publish(await scene.append(*first))
                await scene.settled(*first)

                await asyncio.to_thread(nats.stop)
                await until(lambda: summary(projector)["bus_is_away"])
                await scene.append(*second)
                await scene.settled(*second)
                assert "ready" in get(projector, "/health/ready")

                await asyncio.to_thread(nats.start)
                await until(lambda: not summary(projector)["bus_is_away"])
                recovered = metric(projector, "noetl_projector_events_recovered_total")
                events = await scene.append(*third)
                await until_published(scene, events)
                await scene.settled(*third)
                assert metric(projector, "noetl_projector_events_recovered_total") == recovered
            await scene.assert_rows(*first, *second, *third)


async def until_published(scene: Scene, events: Sequence[tuple[int, StoredEvent]]) -> None:
    async def try_it() -> bool:
        try:
            await scene.publish(events)
        except PublishFailed:
            return False
        return True

    await until(try_it)


async def test_who_asks_for_a_version_gets_it_as_soon_as_it_is_written(scene: Scene) -> None:
    history = two_steps(History(new_id()))
    with scene.projector() as projector:
        await until(lambda: scene.listens(projector), seconds=60)
        async with queries(projector) as client:
            with pytest.raises(NotFound):
                await client.get_execution(SCOPE, history.execution_id)
            asking = asyncio.create_task(
                client.get_execution(SCOPE, history.execution_id, min_version=18, wait_seconds=20)
            )
            await scene.publish(await scene.append(history))

            view = await asking

            assert view == execution_view((await scene.expected(history.execution_id)).state)
            listed = await client.list_executions(SCOPE, page_size=1000)
            assert replace(view, state={}) in listed.executions
            assert [one.execution_id for one in listed.executions] == sorted(
                (one.execution_id for one in listed.executions), reverse=True
            )


async def test_a_claimed_command_shows_up_as_silent_when_its_lease_is_over_by_the_database_s_clock(
    scene: Scene,
) -> None:
    history = History(new_id()).add(initialized())
    soon, later = issued(history, "soon"), issued(history, "later")
    history.add(soon, claimed(soon, lease_seconds=0.5), started(soon))
    history.add(later, claimed(later, lease_seconds=3600), started(later))
    with scene.projector() as projector:
        await until_owned((projector, 64))
        await scene.publish(await scene.append(history))
        await scene.settled(history)
        async with queries(projector) as client:

            async def found() -> list[str]:
                silent = (await client.silent_commands(limit=1000)).commands
                return [one.step for one in silent if one.execution_id == history.execution_id]

            await until(found)
            assert await found() == ["soon"]


PROJECTION_TABLES = (
    "execution", "command", "stage", "frame", "loop", "business_object", "projection_checkpoint", "checkpoint",
    "projection_snapshot", "projection_snapshot_part",
)  # fmt: skip


async def live_checksums(scene: Scene, history: History) -> Mapping[str, Any]:
    """Of the rows as they stand in their tables."""
    async with asyncpg.create_pool(scene.dsn, min_size=1, max_size=1) as pool:
        store = PostgresProjections(pool)
        rows = await stored_rows(store, history.execution_id)
    return checksum_document(
        rows,
        execution_id=history.execution_id,
        stream_version=len(history.stored),
        upcasters=UPCASTERS.digest,
    )


async def test_all_projections_can_be_dropped_and_are_made_again_to_the_byte(scene: Scene) -> None:
    choose = choices(17)
    histories = [
        *random_histories(choose, 8),
        *(telling_history(choose, execution_id=new_id()) for _ in range(8)),
    ]
    with scene.projector("first") as projector:
        await until_owned((projector, 64))
        await scene.publish(badly(choose, await scene.append(*histories)))
        await scene.settled(*histories)
    before = [await live_checksums(scene, history) for history in histories]
    await scene.fetch(f"TRUNCATE {', '.join(f'noetl.{table}' for table in PROJECTION_TABLES)}")
    assert await scene.versions(*(history.execution_id for history in histories)) == {}

    with scene.projector("second"):
        await scene.settled(*histories)

    after = [await live_checksums(scene, history) for history in histories]
    assert after == before
    for history, live in zip(histories, after, strict=True):
        page = await scene.log.read(None, history.execution_id, limit=1000)
        replay = Replay(history.execution_id)
        replay.take(page.events)
        assert replay.result().checksums() == live


FALSIFIED = """
UPDATE noetl.execution SET status = 'RUNNING' WHERE execution_id = :id;
UPDATE noetl.command SET attempt = 99, stream_version = 9999 WHERE execution_id = :id;
DELETE FROM noetl.business_object WHERE execution_id = :id;
"""


async def test_wrong_rows_of_one_execution_are_made_again_as_the_runbook_says(scene: Scene) -> None:
    wrong, neighbour = (telling_history(choices(seed), execution_id=new_id()) for seed in (19, 20))
    with scene.projector("first") as projector:
        await until_owned((projector, 64))
        await scene.append(wrong, neighbour)
        await scene.settled(wrong, neighbour)
        assert await asyncio.to_thread(projector.stop) == 0
    before = await live_checksums(scene, wrong)
    untouched = "SELECT xmin FROM noetl.execution WHERE execution_id = $1"
    stands = await scene.fetch(untouched, neighbour.execution_id)
    ended_long_ago = "UPDATE noetl.stream SET updated_at = updated_at - interval '1 day' WHERE execution_id = ANY($1)"
    await scene.fetch(ended_long_ago, [wrong.execution_id, neighbour.execution_id])
    await scene.execute(FALSIFIED, wrong.execution_id)
    assert await live_checksums(scene, wrong) != before

    (as_the_runbook_says,) = re.findall(r"```sql\n(.*?)```", RUNBOOK.read_text("utf-8"), re.DOTALL)
    await scene.execute(as_the_runbook_says, wrong.execution_id)
    assert await scene.versions(wrong.execution_id) == {}
    with scene.projector("second"):
        await scene.settled(wrong)

    assert await live_checksums(scene, wrong) == before
    await scene.assert_rows(wrong)
    assert await scene.fetch(untouched, neighbour.execution_id) == stands


async def append_rest(scene: Scene, history: History, transactions: slice) -> None:
    """Some of the transactions after the first."""
    for drafts in history.transactions[transactions]:
        await scene.log.append(history.request(drafts, starts=False))


async def test_rows_of_another_registry_are_made_again_when_their_execution_moves_and_then_kept(
    scene: Scene, tmp_path: Path
) -> None:
    """The other release reads the first event of an execution otherwise, so its rows are not ours."""
    moving, ended = two_steps(History(new_id())), two_steps(History(new_id()))
    row_of = "SELECT path, upcasters, stream_version, xmin FROM noetl.execution WHERE execution_id = $1"
    releases = [with_another_upcaster(tmp_path / "other"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    with scene.projector("other", PYTHONPATH=os.pathsep.join(releases)) as other:
        await scene.log.append(moving.request(moving.transactions[0], starts=True))
        await append_rest(scene, moving, slice(1, 2))
        await scene.append(ended)
        await scene.settled(ended)
        await until(lambda: scene.versions(moving.execution_id))
        assert await asyncio.to_thread(other.stop) == 0
    (foreign,) = await scene.fetch(row_of, moving.execution_id)
    (kept,) = await scene.fetch(row_of, ended.execution_id)
    assert foreign["path"] == "renamed/examples/hello"
    assert foreign["upcasters"] == kept["upcasters"] != UPCASTERS.digest

    with scene.projector("ours") as ours:
        await until_owned((ours, 64))
        await append_rest(scene, moving, slice(2, 3))
        await until(lambda: metric(ours, "noetl_projector_states_remade_total") == 1)
        await append_rest(scene, moving, slice(3, None))
        await scene.settled(moving)
        assert metric(ours, "noetl_projector_states_remade_total") == 1

    (ours_now,) = await scene.fetch(row_of, moving.execution_id)
    assert (ours_now["path"], ours_now["upcasters"]) == ("examples/hello", UPCASTERS.digest)
    await scene.assert_rows(moving)
    assert await scene.fetch(row_of, ended.execution_id) == [kept]


async def test_a_clean_stop_writes_the_barriers_of_the_second_that_was_under_way(scene: Scene) -> None:
    execution_id = new_id()
    history = two_steps(History(execution_id))
    with scene.projector(NOETL_PROJECTION_CHECKPOINT_SECONDS="3600") as projector:
        await until_owned((projector, 64))
        assert metric(projector, "noetl_projector_shard_info") == 64
        appended = await scene.append(history)

        async def written() -> bool:
            return (await scene.versions(execution_id)).get(execution_id) == len(history.stored)

        await until(written, seconds=60)
        assert await scene.fetch("SELECT FROM noetl.checkpoint WHERE execution_id = $1", execution_id) == []
        assert await asyncio.to_thread(projector.stop) == 0

    (barrier,) = await scene.fetch("SELECT epoch FROM noetl.checkpoint WHERE execution_id = $1", execution_id)
    (mark,) = await scene.fetch(
        "SELECT last_projected_event_id FROM noetl.projection_checkpoint WHERE shard_id = $1",
        shard_of(execution_id, 64),
    )
    assert barrier["epoch"] == len(history.stored)
    assert mark["last_projected_event_id"] == appended[-1][1].envelope().event_id


async def test_a_long_history_gets_barriers_a_checkpoint_in_its_log_and_a_snapshot(scene: Scene) -> None:
    execution_id = new_id()
    history = History(execution_id).add(initialized())
    for first in range(0, 1100, 100):
        history.add(*(Draft(event_type="note", idempotency_key=f"note/{place}") for place in range(first, first + 100)))
    with scene.projector(NOETL_SNAPSHOT_INTERVAL_EVENTS="1000") as projector:
        await until_owned((projector, 64))
        await scene.append(history)

        async def told() -> bool:
            return (await scene.versions(execution_id)).get(execution_id) == 1102

        await until(told, seconds=60)
        await until(lambda: metric(projector, "noetl_projector_snapshots_total") == 1, seconds=60)
        async with open_channel(f"127.0.0.1:{projector.port('grpc')}", token="service") as channel:
            rules = Rules(code_version=code_version())
            client = SnapshotClient(channel)
            fetched = await client.fetch(SCOPE, execution_id, at_or_below=1101, rules=rules)
            assert await client.fetch(SCOPE, execution_id, at_or_below=999, rules=rules) is None
            rival = Scope(tenant_id="rival", organization_id="default")
            assert await client.fetch(rival, execution_id, at_or_below=1101, rules=rules) is None
        await asyncio.to_thread(replays_begin_with_it_unless_told_otherwise, scene, projector, execution_id)

    (checkpoint,) = (await scene.log.read(None, execution_id, from_version=1102)).events
    content = record(checkpoint).content
    assert isinstance(content, CheckpointCommitted)
    barriers = await scene.fetch("SELECT epoch, told FROM noetl.checkpoint WHERE execution_id = $1", execution_id)
    assert (content.position, True) in [tuple(row) for row in barriers]
    (row,) = await scene.fetch("SELECT * FROM noetl.execution WHERE execution_id = $1", execution_id)
    assert (row["last_event_type"], row["stream_version"]) == ("note", 1102)
    assert fetched is not None
    went_on = Replay(execution_id, seed=open_snapshot(*fetched, execution_id=execution_id, rules=rules))
    assert went_on.version == 1000
    whole = Replay(execution_id)
    for replay in (went_on, whole):
        while replay.version < 1102:
            replay.take((await scene.log.read(None, execution_id, from_version=replay.version + 1)).events)
    assert went_on.result().checksums() == whole.result().checksums()


def replays_begin_with_it_unless_told_otherwise(scene: Scene, projector: ServiceProcess, execution_id: int) -> None:
    """On the command line and over HTTP, from an api that knows this projector."""
    with scene.api_of(projector) as api:
        at = ("replay", "state", str(execution_id), "--at", "1101")
        short, whole = json.loads(noetl(api, *at)), json.loads(noetl(api, *at, "--from-start"))
        url = f"http://127.0.0.1:{api.port('http')}/api/replay/state?execution_id={execution_id}&as_of_position=1101"
        asked = [read_json(f"{url}&from_start={start}") for start in ("false", "true")]
        compared = json.loads(noetl(api, "verify", "snapshots", "--from-events", "1000"))

    assert (short.pop("snapshot_version"), whole.pop("snapshot_version")) == (1000, 0)
    assert short == whole
    assert [one["snapshot_version"] for one in asked] == [1000, 0]
    assert {one["checksum"] for one in asked} == {whole["checksum"]}
    assert (compared["proved"], compared["executions"], compared["from_snapshots"]) == (True, 1, 1)


def noetl(api: ServiceProcess, *arguments: str) -> str:
    """The command line as a service, for programs."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "noetl_cli", *arguments, "-o", "json"],
        env={**environment_of_nobody(), "NOETL_API_ADDRESS": f"127.0.0.1:{api.port('grpc')}", "NOETL_TOKEN": "service"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def read_json(url: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": "Bearer service"})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def answering_pid(projector: ServiceProcess) -> int:
    """The process that answers queries, a child of the one that folds."""
    # By whichever thread it was started.
    tasks = Path(f"/proc/{projector.pid}/task").iterdir()
    (child,) = [child for task in tasks for child in (task / "children").read_text().split()]
    return int(child)


async def test_queries_are_answered_while_the_process_that_folds_stands_still(scene: Scene) -> None:
    history = two_steps(History(new_id()))
    with scene.projector() as projector:
        await until_owned((projector, 64))
        await scene.append(history)
        await scene.settled(history)
        async with queries(projector) as client:
            projector.freeze()
            try:
                view = await client.get_execution(SCOPE, history.execution_id)
            finally:
                projector.thaw()
            assert (view.status, view.stream_version) == ("COMPLETED", 18)
        await until(lambda: 'method="/noetl.projection.v1' in get(projector, "/metrics"), seconds=60)
        assert json.loads(get(projector, "/health"))["checks"]["queries"]["ok"]


async def test_a_process_that_answers_queries_comes_back_at_its_address_and_goes_with_its_parent(
    scene: Scene,
) -> None:
    history = two_steps(History(new_id()))
    with scene.projector() as projector:
        await until_owned((projector, 64))
        await scene.append(history)
        await scene.settled(history)
        first = answering_pid(projector)
        os.kill(first, signal.SIGKILL)

        async def answers() -> bool:
            async with queries(projector) as client:
                try:
                    return (await client.get_execution(SCOPE, history.execution_id)).stream_version == 18
                except NoetlError:
                    return False

        await until(answers, seconds=60)
        second = answering_pid(projector)
        assert second != first
        projector.kill()
        await until(lambda: not Path(f"/proc/{second}").exists(), seconds=60)
