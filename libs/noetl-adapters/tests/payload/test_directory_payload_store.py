"""The directory store does what every payload store does, and leaves nothing half written."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from noetl_adapters.payload.directory import LEFTOVER_SECONDS, DirectoryPayloadStore
from noetl_core.errors import InvalidInput, Unavailable
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.ports.payloads import PayloadStore
from noetl_testkit.compliance.collectable_payloads import CollectablePayloadsCompliance
from noetl_testkit.compliance.payload_store import HELLO, JSON, PayloadStoreCompliance, put


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


class TestDirectoryPayloadStore(PayloadStoreCompliance, CollectablePayloadsCompliance):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "below" / "payloads"

    @pytest.fixture
    def store(self, root: Path) -> DirectoryPayloadStore:
        return DirectoryPayloadStore(root)

    def damage(self, store: PayloadStore, ref: PayloadRef) -> None:
        (stored,) = (path for path in files(root_of(store)) if path.name == ref.sha256)
        stored.write_bytes(b"other bytes")

    def object_count(self, store: PayloadStore) -> int:
        return len(files(root_of(store)))

    async def test_files_lie_below_tenant_organization_and_two_levels_of_digest(
        self, store: DirectoryPayloadStore, root: Path
    ) -> None:
        ref = await put(store, tenant=".acme/x", org="ops")

        digest = ref.sha256
        assert files(root) == [root / "%2Eacme%2Fx" / "ops" / digest[:2] / digest[2:4] / digest]

    async def test_a_name_too_long_for_a_file_is_refused(self, store: DirectoryPayloadStore) -> None:
        with pytest.raises(InvalidInput):
            await put(store, tenant="ä" * 50)

    async def test_a_directory_that_was_removed_is_created_again(
        self, store: DirectoryPayloadStore, root: Path
    ) -> None:
        ref = await put(store)
        subprocess.run(["rm", "-r", str(root)], check=True)  # noqa: ASYNC221 - a test may wait

        await put(store)

        assert await store.get(ref) == HELLO

    async def test_a_write_that_fails_leaves_no_file(
        self, store: DirectoryPayloadStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        await put(store, b"so that the directories are there")
        monkeypatch.setattr(os, "fsync", fail)

        with pytest.raises(Unavailable, match="No space left"):
            await put(store)

        assert len(files(root)) == 1

    async def test_who_gives_up_a_stream_closes_no_file_under_a_thread_that_writes(
        self, store: DirectoryPayloadStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, may_go_on, write = threading.Event(), threading.Event(), os.write
        written: list[int] = []

        def slow_write(descriptor: int, data: memoryview) -> int:
            begun.set()
            may_go_on.wait(60.0)
            written.append(write(descriptor, data[:1]))  # fails if it was closed
            return len(data)

        async def chunks() -> AsyncIterator[bytes]:
            yield b"some bytes"

        monkeypatch.setattr(os, "write", slow_write)
        putting = asyncio.create_task(
            store.put_stream(tenant_id="acme", organization_id="ops", chunks=chunks(), media_type=JSON)
        )
        await asyncio.to_thread(begun.wait, 60.0)
        putting.cancel()
        asyncio.get_running_loop().call_later(0.05, may_go_on.set)

        with pytest.raises(asyncio.CancelledError):
            await putting
        assert written == [1]
        assert files(root) == []

    async def test_what_others_leave_among_payloads_is_none(self, store: DirectoryPayloadStore, root: Path) -> None:
        ref = await put(store)
        (stored,) = files(root)
        (stored.parent / ".nfs0000000000000001").write_bytes(b"x")
        (stored.parent / "notes.txt").write_bytes(b"x")

        found = [one.sha256 async for one in store.find(tenant_id="acme", organization_id="ops")]

        assert found == [ref.sha256]

    async def test_a_leftover_that_cannot_be_removed_keeps_nobody_from_starting(
        self, store: DirectoryPayloadStore, root: Path
    ) -> None:
        (root / ".tmp" / "a directory").mkdir(parents=True)
        os.utime(root / ".tmp" / "a directory", (0, 0))

        assert await store.sweep_leftovers() == 0

    async def test_only_old_leftovers_are_swept(self, root: Path) -> None:
        now = 1_700_000_000.0
        store = DirectoryPayloadStore(root, wall_clock=lambda: now)
        ref = await put(store)
        old, young = root / ".tmp" / "old", root / ".tmp" / "young"
        for leftover, age in ((old, LEFTOVER_SECONDS + 1), (young, LEFTOVER_SECONDS - 1)):
            leftover.write_bytes(b"half")
            os.utime(leftover, (now - age, now - age))

        assert await store.sweep_leftovers() == 1

        assert not old.exists()
        assert young.exists()
        assert await store.get(ref) == HELLO

    async def test_sweeping_a_store_that_was_never_used_does_nothing(self, store: DirectoryPayloadStore) -> None:
        assert await store.sweep_leftovers() == 0

    async def test_a_file_in_the_place_of_the_directory_is_unavailable(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(Unavailable):
            await put(DirectoryPayloadStore(tmp_path / "file"))

    async def test_a_writer_killed_at_any_moment_leaves_whole_payloads_only(self, root: Path) -> None:
        writer = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        with writer.stdout as lines:
            acknowledged = [int(lines.readline()) for _ in range(50)]
            writer.kill()
            acknowledged += [int(line) for line in lines.read().splitlines(keepends=True) if line[-1] == "\n"]
        writer.wait()  # noqa: ASYNC222, RUF100 - it is dead

        store = DirectoryPayloadStore(root)
        for number in acknowledged:
            data = str(number).encode() * 100_000
            ref = refer_to(data, tenant_id="acme", organization_id="ops", media_type=JSON)
            assert await store.get(ref) == data
        payloads = [path for path in files(root) if path.parent.name != ".tmp"]
        assert all(refer_name(path) == path.name for path in payloads)

    async def test_stores_may_share_a_directory(self, root: Path) -> None:
        stores = [DirectoryPayloadStore(root), DirectoryPayloadStore(root)]

        await asyncio.gather(*(put(store, bytes([n])) for n in range(50) for store in stores))

        assert len(files(root)) == 50

    async def test_a_stream_whose_writer_is_killed_leaves_nothing_but_what_is_swept(self, root: Path) -> None:
        writer = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", STREAMER, str(root)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        with writer.stdout as lines:
            lines.readline()  # some of it is written
            writer.kill()
        writer.wait()  # noqa: ASYNC222, RUF100 - it is dead

        (half,) = files(root)
        assert half.parent == root / ".tmp"
        assert [one async for one in DirectoryPayloadStore(root).find(tenant_id="acme", organization_id="ops")] == []
        later = DirectoryPayloadStore(root, wall_clock=lambda: half.stat().st_mtime + LEFTOVER_SECONDS + 1)
        assert await later.sweep_leftovers() == 1
        assert files(root) == []


STREAMER = """
import asyncio, sys
from pathlib import Path
from noetl_adapters.payload.directory import DirectoryPayloadStore

async def chunks():
    while True:
        yield b"x" * 1_000_000
        print(1, flush=True)
        await asyncio.sleep(0.001)

async def main():
    store = DirectoryPayloadStore(Path(sys.argv[1]))
    await store.put_stream(tenant_id="acme", organization_id="ops", chunks=chunks(), media_type="a/b")

asyncio.run(main())
"""

WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from noetl_adapters.payload.directory import DirectoryPayloadStore

async def main():
    store = DirectoryPayloadStore(Path(sys.argv[1]))
    for n in itertools.count():
        await store.put(tenant_id="acme", organization_id="ops", data=str(n).encode() * 100_000, media_type="a/b")
        print(n, flush=True)

asyncio.run(main())
"""


def refer_name(path: Path) -> str:
    return refer_to(path.read_bytes(), tenant_id="t", organization_id="o", media_type=JSON).sha256


def root_of(store: PayloadStore) -> Path:
    assert isinstance(store, DirectoryPayloadStore)
    return store.root


def test_a_store_is_addressed_by_a_file_url() -> None:
    assert DirectoryPayloadStore.from_url("file:///var/lib/no%20etl").root == Path("/var/lib/no etl")


@pytest.mark.parametrize("url", ["/var/lib", "s3://bucket/x", "file://host/x", "file:relative"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        DirectoryPayloadStore.from_url(url)
