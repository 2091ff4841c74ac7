"""Barriers every second, and checkpoints in the log now and then: who tells them, and that they disturb nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from noetl_core.append import AppendRequest
from noetl_core.catalog import to_draft
from noetl_core.checkpoints.events import CheckpointCommitted
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import AlreadyTerminal, Unavailable
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.fold import empty
from noetl_core.ports.leases import Replica
from noetl_core.ports.projection_store import Barrier, ProjectedExecution
from noetl_core.recorded import record
from noetl_core.sharding import shard_of
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_core.upcasting.releases import UPCASTERS
from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.entrypoints.checkpointing import checkpoint_regularly, write_last
from noetl_projector.telemetry import ProjectorMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import EXECUTION, NOON, History, initialized
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.projecting import Process
from noetl_testkit.until import until
from structlog.testing import capture_logs

SHARD = shard_of(EXECUTION, 64)
BETWEEN = 10


class Scene:
    """A log and a store; `project` does what a projector does with everything that is new in the log."""

    def __init__(self) -> None:
        self.leases = InMemoryShardLeases()
        self.log = InMemoryEventLog(leases=self.leases)
        self.late = timedelta()
        self.store = InMemoryProjections(now=lambda: datetime.now(UTC) + self.late)
        self.metrics = MetricSet()
        self.epochs: dict[int, int] = {}
        self.lost: list[int] = []
        self.history = History()
        self.counts = ProjectorMetrics(self.metrics)
        self.barriers = self.owner(self.epochs)

    def owner(self, epochs: dict[int, int]) -> Barriers:
        return Barriers(
            self.store,
            self.log,
            epoch=epochs.get,
            fenced=self.lost.append,
            metrics=self.counts,
            events_between=BETWEEN,
        )

    async def hold(self, incarnation: str = "one/1") -> dict[int, int]:
        replica = Replica(role="projector", instance="one", incarnation=incarnation, address="one")
        holding = await self.leases.hold(replica, lease_seconds=60)
        return {lease.shard: lease.epoch for lease in holding.leases}

    async def happen(self, *contents: object) -> None:
        starts = not self.log.streams
        drafts = tuple(one if isinstance(one, Draft) else _draft(one) for one in contents)
        await self.log.append(self.history.request(drafts, starts=starts))

    async def notes(self, count: int) -> None:
        """So many events of a user."""
        first = len(self.events)
        notes = [Draft(event_type="note", idempotency_key=f"note/{first + place}") for place in range(count)]
        await self.happen(*notes)

    async def project(self, *owners: Barriers) -> None:
        stored = await self.store.load([EXECUTION])
        base = stored[EXECUTION].state if EXECUTION in stored else None
        surfaces = SurfaceFold(base or empty(EXECUTION))
        fresh = self.events[surfaces.state.stream_version :]
        surfaces.add_all(record(event) for event in fresh)
        await self.store.write(
            [
                ProjectedExecution(
                    state=surfaces.state,
                    rows=surfaces.changed_parts(),
                    shard=SHARD,
                    epoch=1,
                    base_version=base.stream_version if base else 0,
                    upcasters=UPCASTERS.digest,
                )
            ]
        )
        for owner in owners or (self.barriers,):
            owner.moved(base or empty(EXECUTION), surfaces.state, oldest_ingest=fresh[0].ingest_time)

    @property
    def events(self) -> list[StoredEvent]:
        stream = self.log.streams.get(EXECUTION)
        return list(stream.events) if stream else []

    @property
    def checkpoints(self) -> list[tuple[int, CheckpointCommitted]]:
        """Those in the log, with their versions."""
        found = [record(event) for event in self.events]
        return [(one.stream_version, one.content) for one in found if isinstance(one.content, CheckpointCommitted)]


def _draft(content: object) -> Draft:
    end = isinstance(content, ExecutionCancelled)
    return to_draft(content, idempotency_key="execution/end" if end else "test/1")


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    scene.epochs.update(await scene.hold())
    await scene.happen(initialized())
    return scene


async def test_what_moved_gets_one_barrier_a_second_however_many_batches_there_were(scene: Scene) -> None:
    for _ in range(3):
        await scene.notes(2)
        await scene.project()
    await scene.barriers.close()
    await scene.barriers.close()

    (barrier,) = await scene.store.barriers(EXECUTION)
    assert barrier.version == 7
    assert scene.metrics.value("noetl_projector_barriers_total") == 1
    assert scene.metrics.value("noetl_checkpoint_age_seconds_count") == 1
    assert scene.checkpoints == []


async def test_the_age_of_the_oldest_barrier_of_a_shard_is_shown_while_it_is_owned(scene: Scene) -> None:
    await scene.notes(1)
    await scene.project()
    scene.late = timedelta(seconds=100)
    await scene.barriers.close()
    shard = {"shard_id": str(SHARD)}
    assert scene.metrics.value("noetl_checkpoint_shard_age_seconds", **shard) >= 100

    scene.counts.forget_shards({SHARD})
    scene.epochs.clear()
    await scene.notes(1)
    await scene.project()
    await scene.barriers.close()

    assert scene.metrics.value("noetl_checkpoint_age_seconds_count") == 2
    assert scene.metrics.registry.get_sample_value("noetl_checkpoint_shard_age_seconds", shard) is None


async def test_a_checkpoint_is_told_after_enough_events_and_is_no_activity_itself(scene: Scene) -> None:
    for _ in range(20):
        await scene.notes(3)
        await scene.project()
        await scene.barriers.close()

    versions = [version for version, _ in scene.checkpoints]
    gaps = [later - earlier - 1 for earlier, later in zip([0, *versions], versions, strict=False)]
    assert len(versions) == 5
    assert all(BETWEEN <= gap < BETWEEN + 4 for gap in gaps)
    assert [one.epoch_id for _, one in scene.checkpoints] == [f"checkpoint_{EXECUTION}_{n}" for n in range(1, 6)]
    told = {one.position for _, one in scene.checkpoints}
    assert told <= {barrier.version for barrier in await scene.store.barriers(EXECUTION)}
    by_version = {event.stream_version: event.envelope().event_id for event in scene.events}
    assert all(int(one.last_event_id) == by_version[one.position] for _, one in scene.checkpoints)


async def test_a_checkpoint_that_is_projected_closes_nothing_and_does_not_look_like_a_last_event(scene: Scene) -> None:
    await scene.notes(BETWEEN)
    await scene.project()
    await scene.barriers.close()
    before = await scene.store.find_execution(None, EXECUTION)
    await scene.project()
    await scene.barriers.close()

    after = await scene.store.find_execution(None, EXECUTION)
    assert before is not None
    assert after is not None
    assert (before.stream_version, after.stream_version) == (11, 12)
    assert after.last_event_type == before.last_event_type == "note"
    quiet = {one.quiet_since for one in await scene.store.quiet_executions(quiet_seconds=-60, limit=1)}
    assert quiet == {scene.events[10].envelope().event_time}
    assert [one.version for one in await scene.store.barriers(EXECUTION)] == [11]
    assert len(scene.checkpoints) == 1


async def test_nothing_is_told_of_an_execution_that_has_ended(scene: Scene) -> None:
    await scene.notes(BETWEEN)
    await scene.project()
    await scene.happen(ExecutionCancelled(reason="enough", cancelled_by="somebody"))
    await scene.barriers.close()

    assert scene.events[-1].envelope().event_type == "execution.cancelled"
    assert scene.checkpoints == []
    assert [one.version for one in await scene.store.barriers(EXECUTION)] == [11]
    await scene.project()
    await scene.barriers.close()
    # The first was about to be told when the log refused it; nobody knows what became of it if that is not heard.
    assert [one.version for one in await scene.store.barriers(EXECUTION)] == [11, 12]
    assert scene.checkpoints == []


async def test_of_two_owners_one_tells_it(scene: Scene) -> None:
    second = scene.owner(scene.epochs)
    await scene.notes(BETWEEN)
    await scene.project(scene.barriers, second)
    await scene.barriers.close()
    await scene.notes(1)  # so that the second one sees another version
    await scene.project(second)
    await second.close()

    assert len(scene.checkpoints) == 1


async def test_a_deposed_owner_tells_nothing_and_learns_it(scene: Scene) -> None:
    await scene.notes(BETWEEN)
    await scene.project()
    await scene.hold("one/2")
    await scene.barriers.close()

    assert scene.checkpoints == []
    assert scene.lost == [SHARD]


async def test_what_could_not_be_written_or_told_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.notes(BETWEEN)
    await scene.project()
    scene.store.failure = Unavailable("the database is away")
    with pytest.raises(Unavailable):
        await scene.barriers.close()
    scene.store.failure = None

    async def away(request: object) -> None:
        raise Unavailable("api is away")

    with monkeypatch.context() as patch:
        patch.setattr(scene.log, "append", away)
        await scene.barriers.close()
    assert [one.version for one in await scene.store.barriers(EXECUTION)] == [11]
    assert scene.checkpoints == []

    await scene.barriers.close()

    assert [version for version, _ in scene.checkpoints] == [12]


async def test_what_moves_while_barriers_are_written_is_as_old_as_its_own_oldest_event(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.notes(1)
    await scene.project()
    write = scene.store.write_barriers
    slow = 3

    async def slowly(execution_ids: Collection[int]) -> list[Barrier]:
        nonlocal slow
        written = await write(execution_ids)
        if slow:  # it goes on while this takes long, and so does the next
            slow -= 1
            await scene.notes(1)
            await scene.project()
        return written

    monkeypatch.setattr(scene.store, "write_barriers", slowly)
    for _ in range(4):
        await scene.barriers.write()

    assert scene.metrics.total("noetl_projector_barriers_total") == 4
    assert scene.metrics.value("noetl_checkpoint_age_seconds_count") == 4


async def test_what_moves_while_barriers_cannot_be_written_is_as_old_as_what_came_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.late = timedelta(seconds=60)
    await scene.notes(1)
    oldest = scene.events[0].ingest_time
    await scene.project()

    async def away(execution_ids: Collection[int]) -> list[Barrier]:
        await scene.notes(1)
        await scene.project()
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(scene.store, "write_barriers", away)
        await scene.barriers.write()
    await scene.barriers.write()

    (barrier,) = await scene.store.barriers(EXECUTION)
    shown = scene.metrics.value("noetl_checkpoint_shard_age_seconds", shard_id=str(SHARD))
    assert shown == (barrier.committed_at - oldest).total_seconds()


async def test_while_api_is_away_one_attempt_to_tell_is_enough_and_the_marks_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    histories = [History(EXECUTION + number) for number in range(3)]
    for history in histories:
        history.add(initialized(), *(Draft(event_type="note", idempotency_key=f"note/{n}") for n in range(20)))
    one = Process(HistoryLog(*histories), InMemoryProjections())
    await one.compare()
    asked: list[int] = []

    async def away(request: AppendRequest) -> None:
        asked.append(request.streams[0].execution_id)
        assert one.store.shards  # the marks are written
        raise Unavailable("api is away")

    monkeypatch.setattr(one.log, "append", away, raising=False)
    loop = asyncio.create_task(
        checkpoint_regularly(one.checkpoints, one.barriers, every_seconds=0.001, beat=lambda: None)
    )
    await until(lambda: len(asked) >= 3)
    loop.cancel()
    with suppress(asyncio.CancelledError):
        await loop

    assert set(asked[:3]) == {history.execution_id for history in histories}  # each in its turn


async def test_a_barrier_stays_from_before_it_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.notes(BETWEEN)
    await scene.project()
    append = scene.log.append

    async def told_and_gone(request: AppendRequest) -> None:
        await append(request)
        raise asyncio.CancelledError  # the process ends before it hears of it

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(scene.log, "append", told_and_gone)
        await scene.barriers.close()
    await scene.notes(1)
    next_one = scene.owner(scene.epochs)
    await scene.project(next_one)
    await next_one.close()

    assert [version for version, _ in scene.checkpoints] == [12]
    assert [one.version for one in await scene.store.barriers(EXECUTION)] == [11, 13]


async def test_at_a_stop_an_api_that_hangs_costs_neither_the_barrier_nor_the_marks_nor_the_release(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(scene.store, ProjectorMetrics(MetricSet()))
    checkpoints.caught_up({SHARD: NOON})
    await scene.notes(BETWEEN)
    await scene.project()
    asked = asyncio.Event()

    async def hang(request: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(scene.log, "append", hang)
    with capture_logs() as lines:
        async with asyncio.timeout(60):
            await write_last(checkpoints, scene.barriers, seconds=0.2)

    assert asked.is_set()
    assert [(line["event"], line["code"]) for line in lines] == [("projector.last_barriers_failed", "deadline_passed")]
    assert [one.version for one in await scene.store.barriers(EXECUTION)] == [11]
    assert scene.store.shards[SHARD].caught_up_to == NOON


async def test_at_a_stop_a_database_that_hangs_is_not_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.notes(1)
    await scene.project()

    async def hang(execution_ids: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(scene.store, "write_barriers", hang)
    async with asyncio.timeout(60):
        await write_last(Checkpoints(scene.store, ProjectorMetrics(MetricSet())), scene.barriers, seconds=0.01)

    assert await scene.store.barriers(EXECUTION) == []


async def test_the_log_itself_refuses_a_checkpoint_after_the_end(scene: Scene) -> None:
    await scene.happen(ExecutionCancelled(reason="enough", cancelled_by="somebody"))
    draft = Draft(event_type="checkpoint.committed", idempotency_key="checkpoint/1", meta={"epoch_id": "x"})

    with pytest.raises(AlreadyTerminal):
        await scene.happen(draft)


async def test_marks_of_a_shard_that_was_lost_are_neither_written_nor_shown() -> None:
    scene, metrics = Scene(), MetricSet()
    checkpoints = Checkpoints(scene.store, ProjectorMetrics(metrics))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    checkpoints.caught_up({3: noon, 4: noon})

    checkpoints.forget_shards([3])
    await checkpoints.flush()

    assert set(await checkpoints.marks([3, 4])) == {4}
    shown = [line for line in metrics.render()[0].decode().splitlines() if "checkpoint_timestamp_seconds{" in line]
    assert [('"4"' in line, '"3"' in line) for line in shown] == [(True, False)]
