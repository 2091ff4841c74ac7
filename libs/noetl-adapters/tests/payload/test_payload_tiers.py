"""Tiers: asked in order, bounded, there again after a restart, and never a source of wrong bytes."""

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from noetl_adapters.payload.disk_tier import DiskTier, owned_directory
from noetl_adapters.payload.memory_tier import MemoryTier
from noetl_adapters.payload.open_store import open_tiered_store
from noetl_adapters.payload.tiers import Miss, PayloadTier, TieredPayloadStore
from noetl_core.canonical import sha256_hex
from noetl_core.errors import NotFound
from noetl_core.payloads import PayloadPart, PayloadRef
from noetl_core.ports.payloads import PayloadStore
from noetl_testkit.compliance.payload_store import HELLO, PayloadStoreCompliance, put
from noetl_testkit.memory.payloads import InMemoryPayloadStore


class Reports:
    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.bytes: dict[str, int] = {}
        self.resolutions: list[tuple[str, float]] = []

    def read(self, tier: str, outcome: str) -> None:
        self.reads[f"{tier} {outcome}"] += 1

    def resolved(self, tier: str, seconds: float) -> None:
        self.resolutions.append((tier, seconds))

    def refused(self, tier: str, reason: str) -> None:
        self.refusals[f"{tier} {reason}"] += 1

    def holds(self, tier: str, size: int) -> None:
        self.bytes[tier] = size


class World:
    """A store, and tiers over it that can be thrown away and made again."""

    def __init__(self, cache: Path, *, memory_bytes: int = 400, disk_bytes: int = 4000) -> None:
        self.cache = cache
        self.store = InMemoryPayloadStore()
        self.memory_bytes, self.disk_bytes = memory_bytes, disk_bytes
        self.restart()

    def restart(self) -> None:
        self.reports = Reports()
        self.tiers: list[PayloadTier] = [
            MemoryTier(budget_bytes=self.memory_bytes, reports=self.reports),
            DiskTier(self.cache, budget_bytes=self.disk_bytes, reports=self.reports),
        ]
        self.payloads = TieredPayloadStore(self.store, self.tiers, self.reports)

    def files(self) -> list[Path]:
        return [path for path in self.cache.rglob("*") if path.is_file()]

    async def reads(self, ref: PayloadRef) -> dict[str, int]:
        """What one read asks."""
        before = self.reports.reads.copy()
        await self.payloads.get(ref)
        return dict(self.reports.reads - before)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


class TestTieredPayloadStore(PayloadStoreCompliance):
    @pytest.fixture
    def store(self) -> TieredPayloadStore:
        self.inner = InMemoryPayloadStore()
        return TieredPayloadStore(self.inner, [], Reports())

    def damage(self, store: PayloadStore, ref: PayloadRef) -> None:
        self.inner.objects[ref.uri] = b"other bytes"

    def object_count(self, store: PayloadStore) -> int:
        return len(self.inner.objects)


class TestStoreBehindTiers(PayloadStoreCompliance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> TieredPayloadStore:
        self.world = World(tmp_path / "cache", memory_bytes=100_000, disk_bytes=50_000_000)
        return self.world.payloads

    def damage(self, store: PayloadStore, ref: PayloadRef) -> None:
        self.world.payloads._tiers = ()  # else nobody would notice
        self.world.store.objects[ref.uri] = b"other bytes"

    def object_count(self, store: PayloadStore) -> int:
        return len(self.world.store.objects)


async def test_what_was_put_is_read_from_memory(world: World) -> None:
    ref = await put(world.payloads)

    assert await world.reads(ref) == {"memory hit": 1}
    assert world.store.objects.keys() == {ref.uri}
    assert world.reports.bytes == {"memory": len(HELLO), "disk": len(HELLO)}


async def test_after_a_restart_it_is_read_from_disk_and_then_from_memory(world: World) -> None:
    ref = await put(world.payloads)
    world.restart()

    assert await world.reads(ref) == {"memory miss": 1, "disk hit": 1}
    assert await world.reads(ref) == {"memory hit": 1}


async def test_what_no_tier_has_is_read_from_the_store_once(world: World) -> None:
    ref = await put(world.store)

    assert await world.reads(ref) == {"memory miss": 1, "disk miss": 1, "store hit": 1}
    assert await world.reads(ref) == {"memory hit": 1}
    assert len(world.files()) == 1


async def test_many_who_ask_at_once_cost_one_read_of_the_store(world: World) -> None:
    ref = await put(world.store, b"x" * 2000)

    values = await asyncio.gather(*(world.payloads.get(ref) for _ in range(20)))

    assert set(values) == {b"x" * 2000}
    assert world.reports.reads["store hit"] == 1


class SlowStore(InMemoryPayloadStore):
    """Tells that it was asked, and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def get(self, ref: PayloadRef) -> bytes:
        self.was_asked.set()
        await self.may_answer.wait()
        return await super().get(ref)


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    store, reports = SlowStore(), Reports()
    payloads = TieredPayloadStore(store, [], reports)
    ref = await put(store)
    first, second = (asyncio.create_task(payloads.get(ref)) for _ in range(2))
    await store.was_asked.wait()
    first.cancel()
    store.may_answer.set()

    assert await second == HELLO
    assert reports.reads == {"store hit": 1}
    with pytest.raises(asyncio.CancelledError):
        await first


class SlowTier(MemoryTier):
    """Looks for so long before it answers."""

    def __init__(self, clock: list[float], seconds: float, reports: Reports) -> None:
        super().__init__(budget_bytes=4000, reports=reports)
        self._clock, self._seconds = clock, seconds

    async def load(self, ref: PayloadRef) -> bytes | Miss:
        self._clock[0] += self._seconds
        return await super().load(ref)


async def test_what_a_reader_waited_for_is_told_by_the_tier_that_had_the_bytes() -> None:
    clock, reports, store = [0.0], Reports(), InMemoryPayloadStore()
    near, far = (SlowTier(clock, seconds, reports) for seconds in (1.0, 10.0))
    near.name, far.name = "near", "far"
    near.is_memory = far.is_memory = False
    payloads = TieredPayloadStore(store, [near, far], reports, clock=lambda: clock[0])
    ref = await put(store)
    part = PayloadPart(start=0, bytes=5, sha256=sha256_hex(HELLO[:5]))

    await payloads.get(ref)
    await payloads.attach(ref)
    await near.forget(ref)
    await payloads.get_part(ref, part)
    await payloads.get(ref)

    assert reports.resolutions == [("store", 11.0), ("near", 1.0), ("far", 11.0), ("far", 11.0)]


async def test_nothing_is_told_of_what_nobody_got(world: World) -> None:
    ref = await put(world.store)
    part = PayloadPart(start=0, bytes=5, sha256=sha256_hex(HELLO[:5]))
    await world.store.delete(ref)

    for reading in (world.payloads.get(ref), world.payloads.get_part(ref, part)):
        with pytest.raises(NotFound):
            await reading

    assert world.reports.resolutions == []


async def test_everybody_who_waited_for_one_read_of_the_store_is_counted(world: World) -> None:
    ref = await put(world.store, b"x" * 2000)

    await asyncio.gather(*(world.payloads.get(ref) for _ in range(20)))

    assert [tier for tier, _ in world.reports.resolutions] == ["store"] * 20


async def test_what_nobody_has_is_not_found(world: World) -> None:
    ref = await put(world.store)
    await world.store.delete(ref)

    with pytest.raises(NotFound):
        await world.payloads.get(ref)

    assert world.reports.reads == {"memory miss": 1, "disk miss": 1, "store miss": 1}


@pytest.mark.parametrize("damaged", [b"", HELLO[:-1], HELLO[:-1] + b"]", HELLO * 2])
async def test_a_file_that_went_bad_is_a_miss_and_is_made_anew(world: World, damaged: bytes) -> None:
    ref = await put(world.payloads)
    (file,) = world.files()
    file.write_bytes(damaged)
    world.restart()

    assert await world.payloads.get(ref) == HELLO

    assert world.reports.reads == {"memory miss": 1, "disk corrupt": 1, "store hit": 1}
    assert [path.read_bytes() for path in world.files()] == [HELLO]


async def test_a_file_that_somebody_removed_is_a_miss(world: World) -> None:
    ref = await put(world.payloads)
    for file in world.files():
        file.unlink()
    await world.tiers[0].forget(ref)

    assert await world.reads(ref) == {"memory miss": 1, "disk miss": 1, "store hit": 1}


async def test_memory_keeps_what_was_used_last(world: World) -> None:
    refs = [await put(world.store, bytes([n]) * 100) for n in range(5)]
    for ref in refs[:4]:
        await world.payloads.get(ref)
    await world.payloads.get(refs[0])
    await world.payloads.get(refs[4])

    assert await world.reads(refs[0]) == {"memory hit": 1}
    assert "memory miss" in await world.reads(refs[1])
    assert world.reports.bytes["memory"] == 400


async def test_the_disk_keeps_what_was_used_last_across_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path / "cache", memory_bytes=0, disk_bytes=400)
    refs = [await put(world.payloads, bytes([n]) * 100) for n in range(4)]
    for file in world.files():
        age = file.read_bytes()[0]
        os.utime(file, (1_700_000_000 + age, 1_700_000_000 + age))
    await world.payloads.get(refs[0])
    world.restart()
    await put(world.payloads, b"x" * 100)

    assert len(world.files()) == 4
    assert "disk hit" in await world.reads(refs[0])
    assert "disk miss" in await world.reads(refs[1])


async def test_a_smaller_budget_makes_room_at_the_start(world: World) -> None:
    for n in range(8):
        await put(world.payloads, bytes([n]) * 400)
    world.disk_bytes = 1200
    world.restart()

    assert sum(file.stat().st_size for file in world.files()) == 1200
    assert world.reports.bytes["disk"] == 1200


async def test_one_payload_does_not_push_everything_else_out(world: World) -> None:
    small, large = await put(world.payloads), await put(world.payloads, b"x" * 1001)

    assert await world.reads(small) == {"memory hit": 1}
    assert await world.reads(large) == {"memory miss": 1, "disk miss": 1, "store hit": 1}
    assert world.reports.refusals == {"memory too_large": 2, "disk too_large": 2}


async def test_a_cache_that_cannot_be_written_costs_nothing_but_the_copy(world: World) -> None:
    world.cache.mkdir()
    (world.cache / "tmp").write_text("in the way")

    ref = await put(world.payloads)

    assert await world.payloads.get(ref) == HELLO
    assert world.reports.bytes == {"memory": len(HELLO), "disk": 0}
    assert world.reports.refusals == {"disk failed": 1}


async def test_a_cache_that_somebody_removed_is_filled_again(world: World) -> None:
    await put(world.payloads)
    shutil.rmtree(world.cache)

    await put(world.payloads, b"more")

    assert [file.read_bytes() for file in world.files()] == [b"more"]
    assert not world.reports.refusals


async def test_a_start_passes_over_what_is_no_copy(world: World) -> None:
    ref = await put(world.payloads)
    (file,) = world.files()
    (file.parent / "directory").mkdir()
    (file.parent / "link").symlink_to("nowhere")
    world.restart()

    assert await world.reads(ref) == {"memory miss": 1, "disk hit": 1}
    assert world.reports.bytes["disk"] == len(HELLO)


PART = PayloadPart(start=2, bytes=5, sha256=sha256_hex(HELLO[2:7]))


async def test_a_part_comes_from_the_nearest_tier_too(world: World) -> None:
    ref = await put(world.payloads)
    assert await world.payloads.get_part(ref, PART) == HELLO[2:7]
    world.restart()
    assert await world.payloads.get_part(ref, PART) == HELLO[2:7]
    for tier in world.tiers:
        await tier.forget(ref)
    world.reports.reads.clear()

    assert await world.payloads.get_part(ref, PART) == HELLO[2:7]
    assert world.reports.reads == {"memory miss": 1, "disk miss": 1, "store hit": 1}


@pytest.mark.parametrize("damaged", [b"", HELLO[:4], HELLO.replace(b"hello", b"HELLO")])
async def test_a_part_that_went_bad_in_a_tier_is_a_miss(world: World, damaged: bytes) -> None:
    ref = await put(world.payloads)
    (file,) = world.files()
    file.write_bytes(damaged)
    world.restart()

    assert await world.payloads.get_part(ref, PART) == HELLO[2:7]
    assert world.reports.reads == {"memory miss": 1, "disk corrupt": 1, "store hit": 1}
    assert world.files() == []


async def test_tenants_share_no_copies(world: World) -> None:
    mine, theirs = await put(world.payloads, tenant="a"), await put(world.payloads, tenant="b")
    await world.payloads.delete(mine)

    with pytest.raises(NotFound):
        await world.payloads.get(mine)
    assert await world.payloads.get(theirs) == HELLO


def test_two_processes_do_not_count_in_one_directory(tmp_path: Path) -> None:
    with owned_directory(tmp_path) as first:
        with owned_directory(tmp_path) as second:
            assert first != second
        with owned_directory(tmp_path) as again:
            assert again == second
    with owned_directory(tmp_path) as after_restart:
        assert after_restart == first


async def test_budgets_of_nothing_leave_the_tiers_out(tmp_path: Path) -> None:
    url, no_tiers = (tmp_path / "payloads").as_uri(), Reports()
    async with open_tiered_store(
        url, {}, memory_bytes=0, cache_directory=tmp_path / "cache", cache_bytes=0, reports=no_tiers
    ) as store:
        ref = await put(store)
        assert await store.get(ref) == HELLO
    assert no_tiers.reads == {"store hit": 1}
    assert not (tmp_path / "cache").exists()


async def test_a_store_with_both_tiers_is_opened_by_its_settings(tmp_path: Path) -> None:
    url, cache = (tmp_path / "payloads").as_uri(), tmp_path / "cache"
    before, after = Reports(), Reports()
    async with open_tiered_store(
        url, {}, memory_bytes=1000, cache_directory=cache, cache_bytes=1000, reports=before
    ) as store:
        ref = await put(store)
        await store.get(ref)
    async with open_tiered_store(
        url, {}, memory_bytes=1000, cache_directory=cache, cache_bytes=1000, reports=after
    ) as store:
        await store.get(ref)
    assert before.reads == {"memory hit": 1}
    assert after.reads == {"memory miss": 1, "disk hit": 1}
