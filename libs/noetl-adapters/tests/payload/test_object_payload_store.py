"""What an object store does when its bucket misbehaves; its ordinary work is tested against real servers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from noetl_adapters.payload.object_store import ObjectPayloadStore
from noetl_core.errors import Corrupt, NotFound, Unavailable
from noetl_core.payloads import refer_to
from noetl_testkit.compliance.payload_store import HELLO, JSON, put, put_stream

REF = refer_to(HELLO, tenant_id="acme", organization_id="ops", media_type=JSON)


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


class FakeBucket:
    """A bucket in memory, in whose calls a test can interfere."""

    name = "fake://bucket"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: Callable[[str], None] = lambda call: None

    def size_and_time(self, key: str) -> tuple[int, datetime | None]:
        self.before("size_and_time")
        if key not in self.objects:
            raise FileNotFoundError(key)
        return len(self.objects[key]), None

    def read(self, key: str, start: int, end: int) -> bytes:
        self.before("read")
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][start:end]

    def write(self, key: str, data: bytes) -> None:
        self.before("write")
        self.objects[key] = data

    def upload(self, key: str, file: Path) -> None:
        self.before("upload")
        self.objects[key] = file.read_bytes()

    def copy(self, key: str, target: str) -> None:
        self.before("copy")
        if key not in self.objects:
            raise FileNotFoundError(key)
        self.objects[target] = self.objects[key]

    def remove(self, key: str) -> None:
        self.before("remove")
        self.objects.pop(key, None)

    def list_directories(self, key: str) -> list[str]:
        return []

    def list_objects(self, key: str) -> list[tuple[str, int, datetime | None]]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket()


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Set at the end, whatever happens: the threads of a pool are waited for when the process ends."""
    release = threading.Event()
    yield release
    release.set()


async def test_a_store_that_hangs_is_unavailable_after_a_while(bucket: FakeBucket, hanging: threading.Event) -> None:
    def hang(call: str) -> None:
        hanging.wait()

    bucket.before = hang
    store = ObjectPayloadStore(bucket, patience_seconds=0.01)

    with pytest.raises(Unavailable, match="has not answered"):
        await store.get(REF)
    assert await asyncio.to_thread(lambda: "others have threads") == "others have threads"
    hanging.set()
    await store.close()


async def test_errors_of_drivers_are_told_by_their_kind_only(bucket: FakeBucket) -> None:
    def fail(call: str) -> None:
        raise RuntimeError("https://key:secret@host is not reachable")

    bucket.before = fail
    with pytest.raises(Unavailable) as refusal:
        await put(ObjectPayloadStore(bucket))
    assert refusal.value.message == "the payload store fake://bucket does not do its work: RuntimeError"


async def test_what_is_there_is_not_sent_again(bucket: FakeBucket) -> None:
    calls: list[str] = []
    bucket.before = calls.append
    store = ObjectPayloadStore(bucket)

    await put(store)
    await put(store)
    await put_stream(store, [HELLO])

    assert calls == ["size_and_time", "write", "size_and_time", "size_and_time"]


async def test_an_object_that_goes_away_while_it_is_read_is_not_found(bucket: FakeBucket) -> None:
    store = ObjectPayloadStore(bucket)
    ref = await put(store)
    bucket.before = lambda call: bucket.objects.clear() if call == "read" else None

    with pytest.raises(NotFound):
        await store.get(ref)


async def test_an_object_that_is_cut_while_it_is_read_is_corrupt(bucket: FakeBucket) -> None:
    store = ObjectPayloadStore(bucket)
    ref = await put(store)

    def cut(call: str) -> None:
        if call == "read":
            bucket.objects = {key: data[:5] for key, data in bucket.objects.items()}

    bucket.before = cut
    with pytest.raises(Corrupt):
        [chunk async for chunk in store.stream(ref)]


async def test_a_spool_that_cannot_be_written_is_told(bucket: FakeBucket, tmp_path: Path) -> None:
    store = ObjectPayloadStore(bucket, spool_directory=tmp_path / "missing")

    with pytest.raises(Unavailable, match="cannot wait"):
        await put_stream(store, [HELLO])


async def test_nothing_is_left_in_the_spool(bucket: FakeBucket, tmp_path: Path) -> None:
    store = ObjectPayloadStore(bucket, spool_directory=tmp_path)

    await put_stream(store, [HELLO] * 3)

    assert files(tmp_path) == []
