import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.ports.leases import Holding, Installation, Replica, ShardLease
from noetl_servicekit.env import Env, SettingsInvalid
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.shard_ownership import (
    HeldShards,
    OwnershipSettings,
    ShardCountMismatch,
    ShardMetrics,
    ShardOwnership,
)
from noetl_testkit.histories import NOON

SETTINGS = OwnershipSettings(shard_count=4, lease_seconds=30.0, heartbeat_seconds=10.0)


def lease(shard: int, epoch: int = 1) -> ShardLease:
    return ShardLease(role="projector", shard=shard, epoch=epoch, instance="p-0", address="here:1", leased_until=NOON)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ScriptedLeases:
    """Grants what the test says; a call takes as long as the test says, by the test's clock."""

    def __init__(self, clock: Clock, *, shard_count: int = 4) -> None:
        self.clock = clock
        self.shard_count = shard_count
        self.granted: list[ShardLease] = []
        self.failure: NoetlError | None = None
        self.takes_seconds = 0.0
        self.held_by: list[Replica] = []
        self.released: list[Replica] = []
        self.called = asyncio.Event()
        self.log_branch = "log.1"
        self.next_expiry_seconds = 0.0

    async def installation(self) -> Installation:
        return Installation(shard_count=self.shard_count, log_generation="g")

    async def hold(self, replica: Replica, *, lease_seconds: float) -> Holding:
        self.held_by.append(replica)
        self.clock.now += self.takes_seconds
        self.called.set()
        if self.failure is not None:
            raise self.failure
        return Holding(
            leases=tuple(self.granted),
            live_instances=2,
            log_branch=self.log_branch,
            next_expiry_seconds=self.next_expiry_seconds,
        )

    async def release(self, replica: Replica) -> int:
        self.released.append(replica)
        if self.failure is not None:
            raise self.failure
        return len(self.granted)

    async def list_shards(self, role: str) -> Sequence[ShardLease]:
        return self.granted


class Seen:
    """What the callbacks were told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def gained(self, shards: Mapping[int, int]) -> None:
        self.events.append(("gained", dict(shards)))

    def lost(self, shards: frozenset[int]) -> None:
        self.events.append(("lost", set(shards)))


class Setup:
    def __init__(self, settings: OwnershipSettings = SETTINGS) -> None:
        self.clock = Clock()
        self.leases = ScriptedLeases(self.clock)
        self.seen = Seen()
        self.metrics = MetricSet()
        self.ownership = ShardOwnership(
            self.leases,
            settings,
            role="projector",
            instance="p-0",
            address="here:1",
            metrics=ShardMetrics(self.metrics),
            on_gained=self.seen.gained,
            on_lost=self.seen.lost,
            clock=self.clock,
        )

    def owner(self, shard: int) -> float:
        return self.metrics.value("noetl_shard_owner", role="projector", shard=str(shard), instance="p-0")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.ownership.run(lambda: None))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


def test_a_lease_is_left_before_it_can_have_expired_counted_from_before_it_was_asked_for() -> None:
    clock = Clock()
    held = HeldShards(lease_seconds=30.0, clock=clock)
    asked_at = clock.now
    clock.now += 5  # that long the answer took

    held.accept([lease(1)], asked_at=asked_at)

    assert held.seconds_left() == pytest.approx(27 - 5)
    clock.now = asked_at + 26.9
    assert held.epoch(1) == 1
    clock.now = asked_at + 27
    assert held.epoch(1) is None
    assert held.epochs() == {}
    assert held.drop_expired() == {1}


def test_a_shard_that_came_back_under_another_epoch_is_lost_and_gained() -> None:
    held = HeldShards(lease_seconds=30.0, clock=Clock())
    held.accept([lease(1), lease(2), lease(3)], asked_at=100.0)

    change = held.accept([lease(1), lease(2, epoch=5), lease(4)], asked_at=100.0)

    assert change.gained == {2: 5, 4: 1}
    assert change.lost == {2, 3}


def test_a_lease_that_ran_out_while_it_was_being_renewed_was_never_lost_if_its_epoch_is_the_same() -> None:
    clock = Clock()
    held = HeldShards(lease_seconds=30.0, clock=clock)
    held.accept([lease(1)], asked_at=clock.now)
    clock.now += 28

    change = held.accept([lease(1)], asked_at=clock.now)

    assert (change.gained, change.lost) == ({}, frozenset())


async def test_a_heartbeat_reports_what_it_changed_and_shows_who_owns_what() -> None:
    setup = Setup()
    setup.leases.granted = [lease(0), lease(1)]
    assert await setup.ownership.renew()
    setup.leases.granted = [lease(1), lease(2, epoch=7)]
    assert await setup.ownership.renew()

    assert setup.seen.events == [("gained", {0: 1, 1: 1}), ("lost", {0}), ("gained", {2: 7})]
    assert setup.ownership.epochs() == {1: 1, 2: 7}
    assert setup.ownership.epoch(0) is None
    assert setup.ownership.epoch(2) == 7
    assert (setup.owner(0), setup.owner(1), setup.owner(2)) == (0, 1, 1)
    assert setup.ownership.live_instances == 2


async def test_a_heartbeat_that_changes_nothing_says_nothing() -> None:
    setup = Setup()
    setup.leases.granted = [lease(0)]
    await setup.ownership.renew()
    setup.clock.now += 10
    await setup.ownership.renew()

    assert setup.seen.events == [("gained", {0: 1})]


async def test_what_is_held_is_used_while_nobody_answers_but_only_until_it_could_expire() -> None:
    setup = Setup()
    setup.leases.granted = [lease(0)]
    await setup.ownership.renew()
    setup.leases.failure = Unavailable("api is away")

    setup.clock.now += 20
    assert not await setup.ownership.renew()
    assert setup.ownership.epoch(0) == 1

    setup.clock.now += 7
    assert setup.ownership.epoch(0) is None, "even before anybody reported it"
    assert not await setup.ownership.renew()
    assert setup.seen.events[-1] == ("lost", {0})
    assert setup.metrics.value("noetl_shard_hold_failures_total", role="projector") == 2


async def test_an_answer_that_took_too_long_grants_nothing() -> None:
    setup = Setup()
    setup.leases.granted = [lease(0)]
    setup.leases.takes_seconds = 28

    await setup.ownership.renew()

    assert setup.ownership.epoch(0) is None


async def test_another_number_of_shards_than_the_database_s_is_refused() -> None:
    setup = Setup()
    setup.leases.shard_count = 64

    with pytest.raises(ShardCountMismatch, match="has 64 shards, NOETL_SHARD_COUNT says 4"):
        await setup.ownership.run(lambda: None)

    assert setup.leases.held_by == []


async def test_stopping_gives_everything_back() -> None:
    setup = Setup()
    setup.leases.granted = [lease(0), lease(3)]
    await setup.ownership.renew()

    await setup.ownership.release()

    assert setup.seen.events[-1] == ("lost", {0, 3})
    assert setup.leases.released == [setup.ownership.replica]
    assert setup.ownership.epochs() == {}


async def test_stopping_while_nobody_answers_is_no_error() -> None:
    setup = Setup()
    setup.leases.failure = Unavailable("api is away")

    await setup.ownership.release()


async def test_a_fenced_writer_gives_the_shard_up_and_asks_again_at_once() -> None:
    setup = Setup()
    setup.leases.granted = [lease(0)]
    async with setup.running():
        await setup.leases.called.wait()
        setup.leases.called.clear()
        await until(lambda: setup.ownership.epoch(0) == 1)
        setup.leases.granted = [lease(0, epoch=4)]

        setup.ownership.fenced(0)

        assert setup.ownership.epoch(0) is None
        await until(lambda: setup.ownership.epoch(0) == 4)
    assert setup.seen.events == [("gained", {0: 1}), ("lost", {0}), ("gained", {0: 4})]


async def test_the_loop_goes_on_through_failures_and_shows_that_it_lives() -> None:
    setup = Setup(OwnershipSettings(shard_count=4, lease_seconds=30, heartbeat_seconds=0.01))
    beats = 0
    many = asyncio.Event()

    def beat() -> None:
        nonlocal beats
        beats += 1
        setup.leases.failure = None
        if beats == 3:
            many.set()

    setup.leases.failure = Unavailable("api is away")
    setup.leases.granted = [lease(0)]
    task = asyncio.create_task(setup.ownership.run(beat))
    await many.wait()
    task.cancel()
    await asyncio.wait({task})

    assert setup.ownership.epoch(0) == 1


async def test_every_process_is_an_incarnation_of_its_own() -> None:
    one, other = Setup().ownership.replica, Setup().ownership.replica

    assert (one.instance, one.role, one.address) == ("p-0", "projector", "here:1")
    assert one.incarnation != other.incarnation


def test_a_lease_must_outlive_a_missed_heartbeat() -> None:
    env = Env({"NOETL_SHARD_LEASE_SEC": "5", "NOETL_SHARD_HEARTBEAT_SEC": "3"})
    OwnershipSettings.read(env)

    with pytest.raises(SettingsInvalid, match="at least twice"):
        env.check()


def test_the_settings_have_defaults() -> None:
    env = Env({})
    settings = OwnershipSettings.read(env)
    assert settings == OwnershipSettings(shard_count=64, lease_seconds=24.0, heartbeat_seconds=6.0)
    assert settings.lease_seconds + settings.heartbeat_seconds <= 30.0, "shards of the dead are served again by then"
    env.check()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds; the test's timeout ends a wait that is in vain."""
    while not condition():  # noqa: ASYNC110 - nothing else would signal it
        await asyncio.sleep(0)


async def test_a_database_that_was_put_back_makes_every_shard_begin_anew() -> None:
    setup = Setup()
    setup.leases.granted = [lease(1), lease(2)]
    await setup.ownership.renew()
    assert setup.ownership.log_branch == "log.1"

    setup.leases.log_branch = "log.2"
    await setup.ownership.renew()
    setup.leases.log_branch = ""  # an older api cannot tell
    await setup.ownership.renew()

    assert setup.seen.events == [("gained", {1: 1, 2: 1}), ("lost", {1, 2}), ("gained", {1: 1, 2: 1})]
    assert setup.ownership.log_branch == "log.2"


async def test_what_a_silent_replica_has_left_is_asked_for_when_its_lease_is_over() -> None:
    setup = Setup(OwnershipSettings(shard_count=4, lease_seconds=3000.0, heartbeat_seconds=1000.0))
    setup.leases.granted = [lease(1)]
    setup.leases.next_expiry_seconds = 0.01

    async with setup.running():
        await asyncio.wait_for(setup.leases.called.wait(), 60)
        setup.leases.next_expiry_seconds = 0.0
        setup.leases.granted = [lease(1), lease(2)]
        setup.leases.called.clear()
        await asyncio.wait_for(setup.leases.called.wait(), 60)  # the next heartbeat is far away
        await asyncio.sleep(0)

    assert len(setup.leases.held_by) == 2
    assert ("gained", {2: 1}) in setup.seen.events
