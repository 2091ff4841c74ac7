"""Whatever the order in which a writer and collectors do their steps, no event points at bytes that are not there.

A payload has been garbage for long. A writer finds it, or stores it anew, and appends an event later. Collectors do
every step of a collection meanwhile. Each test tries all orders of their calls, with everything as it is in service
but for the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.payload.names import payload_path, withdrawn_path
from noetl_adapters.payload.object_store import ObjectPayloadStore
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.ports.payloads import CollectablePayloads
from noetl_testkit.collecting import GRACE, JSON, Collecting, telling

DATA = b"bytes"
REF = refer_to(DATA, tenant_id="acme", organization_id="ops", media_type=JSON)
RUNS = 6
"""Twice as often as the grace period asks for: mark, nothing, withdraw, nothing, sweep, nothing."""
PAUSE = GRACE / 2 + timedelta(minutes=1)
NEVER = 10**9


class Writer:
    """Puts at one moment and tells at another; from then on the bytes must be there, at every moment."""

    def __init__(self, collecting: Collecting, *, puts_at: int, tells_at: int) -> None:
        self._collecting = collecting
        self._puts_at = puts_at
        self._tells_at = tells_at
        self.is_told = False
        self.moment = 0

    async def step(self) -> None:
        moment, self.moment = self.moment, self.moment + 1
        collecting = self._collecting
        if moment == self._puts_at:
            await collecting.put(DATA)
        if moment == self._tells_at:
            await collecting.tell(REF)
            self.is_told = True
        if self.is_told:
            assert await collecting.payloads.get(REF) == DATA, f"gone at {moment}"


async def garbage_in(collecting: Collecting) -> None:
    await collecting.tell(await collecting.put(b"kept"))
    await collecting.put(DATA)
    collecting.wait()


async def collect_all(collecting: Collecting) -> None:
    """All runs."""
    for _ in range(RUNS):
        await collecting.run()
        collecting.wait(PAUSE)


async def moments_of(store: CollectablePayloads | None) -> list[datetime]:
    """When each moment is, counted without a writer."""
    collecting = Collecting(store)
    await garbage_in(collecting)
    times: list[datetime] = []

    async def count() -> None:
        times.append(collecting.clock())

    collecting.between = count
    await collect_all(collecting)
    return times


def orders(times: list[datetime]) -> Iterator[tuple[int, int]]:
    """Pairs of moments for putting and telling between which less than the grace period passes."""
    for puts_at, put_time in enumerate(times):
        for tells_at in range(puts_at, len(times)):
            apart = times[tells_at] - put_time
            # Within one run all that are near to each other, from one run to the next every eleventh.
            is_near = apart < PAUSE / 2 and tells_at - puts_at < 6
            if is_near or (apart < GRACE - timedelta(minutes=5) and (puts_at + tells_at) % 11 == 0):
                yield puts_at, tells_at


async def play(store: CollectablePayloads | None, puts_at: int, tells_at: int) -> None:
    collecting = Collecting(store)
    await garbage_in(collecting)
    writer = Writer(collecting, puts_at=puts_at, tells_at=tells_at)
    collecting.between = writer.step
    await collect_all(collecting)
    collecting.between = _nobody
    assert writer.is_told
    assert await collecting.payloads.get(REF) == DATA
    found = [one.sha256 async for one in collecting.payloads.find(tenant_id="acme", organization_id="ops")]
    assert REF.sha256 in found, "whatever was put aside is back"


async def _nobody() -> None:
    pass


async def test_without_a_writer_the_garbage_is_gone() -> None:
    collecting = Collecting()
    await garbage_in(collecting)
    await collect_all(collecting)

    assert not await collecting.is_there(REF)


async def test_all_orders_over_the_store_in_memory() -> None:
    tried = list(orders(await moments_of(None)))
    for puts_at, tells_at in tried:
        await play(None, puts_at, tells_at)

    assert len(tried) > 150


async def test_all_orders_within_the_steps_over_a_directory(tmp_path: Path) -> None:
    times = await moments_of(DirectoryPayloadStore(tmp_path / "counted"))
    steps = [at for at, time in enumerate(times) if (time - times[0]) // (PAUSE - timedelta(minutes=1)) in (2, 4)]
    tried = [(puts_at, tells_at) for puts_at, tells_at in orders(times) if puts_at in steps and tells_at - puts_at < 2]
    for number, (puts_at, tells_at) in enumerate(tried):
        await play(DirectoryPayloadStore(tmp_path / str(number)), puts_at, tells_at)

    assert len(tried) > 30


async def test_a_writer_that_puts_and_never_tells_leaves_garbage_that_goes_later() -> None:
    collecting = Collecting()
    await garbage_in(collecting)
    for _ in range(3):
        await collecting.run()
        await collecting.put(DATA)
        collecting.wait()
    for _ in range(4):
        collecting.wait()
        await collecting.run()

    assert not await collecting.is_there(REF)


async def test_a_second_collector_in_the_midst_of_the_first_does_no_harm() -> None:
    """At every moment of the runs another one is made from beginning to end, and the writer may have its turn."""
    moments = len(await moments_of(None))
    for at in range(moments):
        await _play_two(at, writes=("not at all", "before", "after")[at % 3])
        await _play_two(at, writes="after")


async def _play_two(at: int, *, writes: str) -> None:
    collecting = Collecting()
    await garbage_in(collecting)
    moment = 0
    is_told = False

    async def write() -> None:
        nonlocal is_told
        await collecting.put(DATA)
        await collecting.tell(REF)
        is_told = True

    async def second() -> None:
        nonlocal moment
        now, moment = moment, moment + 1
        if now == at:
            if writes == "before":
                await write()
            collecting.between = _nobody
            await collecting.run()
            collecting.between = second
            if writes == "after":
                await write()
        assert not is_told or await collecting.payloads.get(REF) == DATA

    collecting.between = second
    await collect_all(collecting)
    collecting.between = _nobody
    for _ in range(2):
        collecting.wait()
        await collecting.run()
    assert await collecting.is_there(REF) == is_told


class TimedBucket:
    """A bucket in memory. Its calls can be watched, and what it removes it may remove once more, later."""

    name = "fake://bucket"

    def __init__(self, *, echoes: bool) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.between: Callable[[], None] = lambda: None
        self._echoes = echoes
        self._echo: str | None = None

    def size_and_time(self, key: str) -> tuple[int, datetime | None]:
        self._step()
        data, stored_at = self._object(key)
        return len(data), stored_at

    def read(self, key: str, start: int, end: int) -> bytes:
        self._step()
        return self._object(key)[0][start:end]

    def write(self, key: str, data: bytes) -> None:
        self._step()
        self.objects[key] = (data, datetime.now(UTC))

    def upload(self, key: str, file: Path) -> None:
        self.write(key, file.read_bytes())

    def copy(self, key: str, target: str) -> None:
        self._step()
        self.objects[target] = (self._object(key)[0], datetime.now(UTC))

    def remove(self, key: str) -> None:
        self._step()
        self.objects.pop(key, None)
        self._echo = key if self._echoes else None

    def list_directories(self, key: str) -> list[str]:
        below = [name.removeprefix(f"{key}/") for name in self.objects if name.startswith(f"{key}/")]
        return sorted({name.partition("/")[0] for name in below})

    def list_objects(self, key: str) -> list[tuple[str, int, datetime | None]]:
        return [
            (name.rpartition("/")[2], len(data), stored_at)
            for name, (data, stored_at) in self.objects.items()
            if name.startswith(f"{key}/")
        ]

    def close(self) -> None:
        pass

    def _object(self, key: str) -> tuple[bytes, datetime]:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]

    def _step(self) -> None:
        self.between()
        if self._echo is not None:
            self.objects.pop(self._echo, None)
            self._echo = None


class BucketWriter:
    """Gets in between two calls of the bucket: looks whether the object is there, and writes it if it is not."""

    def __init__(self, collecting: Collecting, bucket: TimedBucket, *, puts_at: int, tells_at: int) -> None:
        self._collecting = collecting
        self._bucket = bucket
        self._puts_at = puts_at
        self._tells_at = tells_at
        self.moments: list[datetime] = []
        self.is_told = False

    def step(self) -> None:
        moment = len(self.moments)
        self.moments.append(self._collecting.clock())
        key = payload_path(REF)
        if moment == self._puts_at and key not in self._bucket.objects:
            self._bucket.objects[key] = (DATA, datetime.now(UTC))
        if moment == self._tells_at:
            log = self._collecting.log
            outcome = log._commit_one(log.prepare(telling(log.next_id(), REF)))
            self.is_told = isinstance(outcome, tuple)
        assert not self.is_told or {key, withdrawn_path(REF)} & self._bucket.objects.keys(), f"gone at {moment}"


@pytest.mark.parametrize("echoes", [False, True], ids=["exact", "with late removals"])
async def test_all_orders_of_the_calls_of_a_bucket(echoes: bool) -> None:
    """Copies and removals are calls of their own there, and a removal may come through twice."""
    times = (await _play_bucket(NEVER, NEVER, echoes=echoes)).moments
    tried = [(puts_at, tells_at) for puts_at, tells_at in orders(times) if tells_at - puts_at < (4 if echoes else 2)]
    for puts_at, tells_at in tried:
        await _play_bucket(puts_at, tells_at, echoes=echoes)

    assert len(tried) > 40


async def _play_bucket(puts_at: int, tells_at: int, *, echoes: bool) -> BucketWriter:
    bucket = TimedBucket(echoes=echoes)
    store = ObjectPayloadStore(bucket)
    collecting = Collecting(store)
    await garbage_in(collecting)
    writer = BucketWriter(collecting, bucket, puts_at=puts_at, tells_at=tells_at)
    for _ in range(RUNS):
        bucket.between = writer.step
        await collecting.run()
        bucket.between = lambda: None
        assert await _is_read(collecting, REF) or not writer.is_told, f"gone: put at {puts_at}, told at {tells_at}"
        collecting.wait(PAUSE)
    assert await _is_read(collecting, REF) == writer.is_told
    await store.close()
    return writer


async def _is_read(collecting: Collecting, ref: PayloadRef) -> bool:
    return await collecting.is_there(ref) and await collecting.payloads.get(ref) == DATA
