import pytest
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Publisher, PublishFailed, PullConsumer
from noetl_testkit.compliance.bus import BusCompliance, MakeConsumer
from noetl_testkit.memory.bus import InMemoryBus, matches


class TestInMemoryBus(BusCompliance):
    @pytest.fixture
    def bus(self) -> InMemoryBus:
        bus = InMemoryBus()
        bus.unpublishable.add("elsewhere.unknown")
        return bus

    @pytest.fixture
    def publisher(self, bus: InMemoryBus) -> Publisher:
        return bus

    @pytest.fixture
    def make_consumer(self, bus: InMemoryBus) -> MakeConsumer:
        async def make(*subjects: str, max_ack_pending: int = 1_000) -> PullConsumer:
            return bus.consumer(*subjects, max_ack_pending=max_ack_pending)

        return make

    async def test_a_bus_that_goes_away_in_a_batch_has_taken_a_prefix(self, bus: InMemoryBus, space: str) -> None:
        bus.refuse_after = 2

        with pytest.raises(PublishFailed) as failure:
            await bus.publish_batch(self.messages(space, range(4)))

        assert failure.value.acknowledged == {f"{space}/0/0", f"{space}/0/1"}
        assert [message.body for message in bus.published] == [b"body 0", b"body 1"]

    async def test_a_consumer_of_a_bus_that_is_away_is_told_so(self, bus: InMemoryBus) -> None:
        bus.away = True

        with pytest.raises(Unavailable):
            await bus.consumer("a").fetch(batch=1, wait_seconds=0)

    async def test_a_broadcast_reaches_who_listens(self, bus: InMemoryBus, space: str) -> None:
        heard: list[bytes] = []

        async def receive(body: bytes) -> None:
            heard.append(body)

        await bus.subscribe(f"{space}.>", receive)
        await bus.publish_batch([self.message(space, 1)])

        assert heard == [b"body 1"]


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.*.3", "x.y.3", True),
        ("*.*.3", "x.y.4", False),
    ],
)
def test_patterns_fit_as_nats_has_them(pattern: str, subject: str, fits: bool) -> None:
    assert matches(pattern, subject) is fits
