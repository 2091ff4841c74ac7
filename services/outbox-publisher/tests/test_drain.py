import pytest
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Message
from noetl_core.ports.outbox import OutboxPublisher
from noetl_outbox_publisher.application.drain import Drain
from noetl_outbox_publisher.application.publish_batch import PublishBatch
from noetl_outbox_publisher.telemetry import PublisherMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.shard_ownership import ShardCountMismatch
from noetl_testkit.memory.bus import InMemoryBus
from noetl_testkit.memory.outbox import InMemoryOutbox, InMemoryOutboxLeases

LEASE_SECONDS = 10.0


class World:
    """Publishers that share one outbox, one bus and one clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.outbox = InMemoryOutbox(clock=lambda: self.now)
        self.leases = InMemoryOutboxLeases(shards=4, clock=lambda: self.now)
        self.bus = InMemoryBus()
        self.metrics = MetricSet()

    def drain(self, instance: str, incarnation: str = "1") -> Drain:
        self.metrics = MetricSet()
        metrics = PublisherMetrics(self.metrics)
        return Drain(
            self.leases,
            PublishBatch(self.outbox, self.bus, metrics, batch_rows=2, publish_seconds=2.0, clock=lambda: self.now),
            metrics,
            publisher=OutboxPublisher(instance=instance, incarnation=incarnation),
            lease_seconds=LEASE_SECONDS,
            poll_seconds=1.0,
            clock=lambda: self.now,
        )

    def commit(self, *numbers: int, shard: int = 0) -> None:
        for number in numbers:
            name = f"{shard}/{number}"
            self.outbox.write(
                Message(subject=f"noetl.events.t.o.{shard}.{shard}", message_id=name, body=b""), shard=shard
            )

    @property
    def published(self) -> list[str]:
        return [message.message_id for message in self.bus.published]


@pytest.fixture
def world() -> World:
    return World()


async def test_a_publisher_alone_drains_everything(world: World) -> None:
    drain = world.drain("ada")
    for shard in range(4):
        world.commit(1, shard=shard)

    assert [await drain.step() for _ in range(3)] == [True, True, False]

    assert world.outbox.rows == {}
    assert world.metrics.value("noetl_outbox_held_shards") == 4


async def test_leases_are_renewed_well_before_they_end(world: World) -> None:
    ada, bob = world.drain("ada"), world.drain("bob")
    await ada.step()
    for _ in range(12):
        world.now += LEASE_SECONDS / 4
        await ada.step()
        world.commit(1)

    assert (await bob.step(), bob.shards) == (False, frozenset())


async def test_a_newcomer_gets_its_share_when_the_others_have_given_it_back(world: World) -> None:
    ada, bob = world.drain("ada"), world.drain("bob")
    await ada.step()
    await bob.step()
    assert (len(ada.shards), len(bob.shards)) == (4, 0)

    world.now += LEASE_SECONDS / 4
    await ada.step()
    world.now += 1.0  # short of its share it asks at every poll
    await bob.step()

    assert (len(ada.shards), len(bob.shards)) == (2, 2)
    assert ada.shards.isdisjoint(bob.shards)


async def test_a_shard_that_changes_hands_is_published_in_order(world: World) -> None:
    ada, bob = world.drain("ada"), world.drain("bob")
    for shard in range(4):
        world.commit(*range(6), shard=shard)
    for _ in range(40):
        await ada.step()
        await bob.step()
        world.now += 0.5

    assert world.outbox.rows == {}
    for shard in range(4):
        own = [name for name in world.published if name.startswith(f"{shard}/")]
        assert own == [f"{shard}/{number}" for number in range(6)]


async def test_a_publisher_whose_lease_has_ended_publishes_nothing_until_it_has_a_new_one(world: World) -> None:
    ada, bob = world.drain("ada"), world.drain("bob")
    await ada.step()
    world.now += LEASE_SECONDS * 1.1  # as if the process had been stopped
    await bob.step()
    world.commit(1)

    assert await ada.step() is False

    assert world.published == []
    assert ada.shards == frozenset()


async def test_nothing_is_published_while_leases_cannot_be_renewed(world: World) -> None:
    drain = world.drain("ada")
    await drain.step()
    world.commit(1)
    world.now += LEASE_SECONDS / 4
    world.leases.away = True

    with pytest.raises(Unavailable):
        await drain.step()

    assert world.published == []


async def test_a_restarted_instance_takes_its_own_shards_back_at_once(world: World) -> None:
    await world.drain("ada", "before the crash").step()
    after = world.drain("ada", "after the crash")

    await after.begin(shard_count=4)
    await after.step()

    assert after.shards == frozenset(range(4))


async def test_a_publisher_that_ends_leaves_its_shards_to_the_others_at_once(world: World) -> None:
    ada, bob = world.drain("ada"), world.drain("bob")
    await ada.step()

    await ada.end()
    await bob.step()

    assert bob.shards == frozenset(range(4))
    assert ada.shards == frozenset()


async def test_a_publisher_ends_even_if_the_database_is_away(world: World) -> None:
    drain = world.drain("ada")
    await drain.step()
    world.leases.away = True

    await drain.end()

    assert drain.shards == frozenset()


async def test_another_number_of_shards_than_the_installation_has_is_refused(world: World) -> None:
    with pytest.raises(ShardCountMismatch, match="has 4 shards, NOETL_SHARD_COUNT says 64"):
        await world.drain("ada").begin(shard_count=64)
