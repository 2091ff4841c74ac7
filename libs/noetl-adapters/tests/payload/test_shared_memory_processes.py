"""Shared memory between processes: real ones, some of them killed, and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from noetl_adapters.payload.open_shm import SharedMemorySettings, open_shared_memory
from noetl_adapters.payload.open_store import open_tiered_store
from noetl_adapters.payload.shm_directory import directory_name, remove_if_unused
from noetl_adapters.payload.shm_tier import SharedMemoryTier
from noetl_adapters.payload.tiers import Miss
from noetl_core.payloads import PayloadRef
from noetl_core.ports.tables import MEDIA_TYPE
from noetl_core.ports.upkeep import Upkeep
from noetl_testkit.shared_memory import Reports, ample_room, bytes_in, reference, table

STORE = "s3://bucket"
TABLE = table(1, size=1_000_000)

CHILD = """
import asyncio, os, sys, time
from pathlib import Path
from noetl_adapters.payload.open_shm import SharedMemorySettings, open_shared_memory
from noetl_testkit.shared_memory import Reports, ample_room, reference, table

directory, store, action = sys.argv[1:]
data = table(1, size=1_000_000)
write = os.pwrite

def write_half(file, data, position):
    written = write(file, data[: len(data) // 2], position)
    print("half", flush=True)
    time.sleep(600)
    return written

async def main():
    settings = SharedMemorySettings(
        budget_bytes=64_000_000, lease_seconds=600, grace_seconds=60, directory=Path(directory), node_id="node"
    )
    async with open_shared_memory(settings, store, {}, reports=Reports(), warn=print, room=ample_room) as tier:
        if action == "half":
            os.pwrite = write_half
        if action in ("produce", "half"):
            await tier.keep(reference(data), data, produced=True)
        if action == "read":
            found = await tier.load(reference(data))
            print("same" if isinstance(found, memoryview) and found == data else repr(found), flush=True)
        print("done", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


class Child:
    """Another process that uses the shared memory of a directory."""

    def __init__(self, directory: Path, action: str, *, store: str = STORE) -> None:
        arguments = [sys.executable, "-c", CHILD, str(directory), store, action]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        """In good order."""
        self._process.communicate("\n", timeout=60)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=60)


@contextmanager
def child(directory: Path, action: str, *, store: str = STORE) -> Iterator[Child]:
    with ExitStack() as stack:
        running = Child(directory, action, store=store)
        stack.callback(running.kill)
        yield running


@asynccontextmanager
async def opened(directory: Path, *, store: str = STORE) -> AsyncIterator[SharedMemoryTier]:
    settings = settings_of(directory)
    async with open_shared_memory(settings, store, {}, reports=Reports(), warn=pytest.fail, room=ample_room) as tier:
        assert tier is not None
        yield tier


def settings_of(directory: Path) -> SharedMemorySettings:
    return SharedMemorySettings(
        budget_bytes=64_000_000, lease_seconds=600, grace_seconds=60, directory=directory, node_id="node"
    )


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(".lock")]


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_two_processes_share_what_one_of_them_has_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as tier:
        await tier.keep(reference(TABLE), TABLE, produced=True)
        with child(tmp_path, "read") as reader:
            assert await asyncio.to_thread(reader.says) == "same"


async def test_a_writer_that_is_killed_in_the_middle_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    with child(tmp_path, "half") as writer:
        assert await asyncio.to_thread(writer.says) == "half"
        async with opened(tmp_path) as tier:
            assert len(files(tmp_path)) == 1  # it lives, so its room is its own
            await asyncio.to_thread(writer.kill)
            assert await tier.load(reference(TABLE)) is Miss.ABSENT
            await tier.sweep()
            assert files(tmp_path) == []
            assert await tier.keep(reference(TABLE), TABLE, produced=True) is not None
            assert await bytes_in(tier, TABLE) == TABLE


async def test_what_a_killed_producer_had_finished_is_still_there_for_the_next_process(tmp_path: Path) -> None:
    with child(tmp_path, "produce") as producer:
        assert await asyncio.to_thread(producer.says) == "done"
        await asyncio.to_thread(producer.kill)

    async with opened(tmp_path) as tier:
        assert await bytes_in(tier, TABLE) == TABLE
    assert names(tmp_path) == []


async def test_the_last_process_takes_everything_away(tmp_path: Path) -> None:
    with child(tmp_path, "produce") as producer:
        assert await asyncio.to_thread(producer.says) == "done"
        async with opened(tmp_path) as tier:
            await asyncio.to_thread(producer.stop)
            assert await bytes_in(tier, TABLE) == TABLE
    assert names(tmp_path) == []


async def test_a_start_removes_what_dead_processes_of_other_installations_have_left(tmp_path: Path) -> None:
    with child(tmp_path, "produce", store="s3://dead") as dead, child(tmp_path, "produce", store="s3://alive") as alive:
        assert await asyncio.to_thread(dead.says) == await asyncio.to_thread(alive.says) == "done"
        await asyncio.to_thread(dead.kill)
        not_ours = tmp_path / "noetl-other"
        not_ours.mkdir()
        async with opened(tmp_path):
            assert len(files(tmp_path)) == 1
            assert len(names(tmp_path)) == 3


async def test_what_killed_processes_have_left_can_be_removed_from_outside(tmp_path: Path) -> None:
    with child(tmp_path, "produce") as producer:
        assert await asyncio.to_thread(producer.says) == "done"
        assert not remove_if_unused(tmp_path / directory_name(STORE, {}))
        assert len(files(tmp_path)) == 1
        await asyncio.to_thread(producer.kill)

    assert remove_if_unused(tmp_path / directory_name(STORE, {}))
    assert names(tmp_path) == []
    assert not remove_if_unused(tmp_path / directory_name(STORE, {}))


async def test_users_that_come_and_go_at_once_never_lose_their_directory(tmp_path: Path) -> None:
    async def use(seed: int) -> bool:
        data = table(seed)
        async with opened(tmp_path) as tier:
            while await tier.keep(reference(data), data, produced=True) is None:
                pass  # others had the lock for too long
            return await bytes_in(tier, data) == data

    for _ in range(5):
        assert all(await asyncio.gather(*(use(seed) for seed in range(8))))
    assert names(tmp_path) == []


class TestWhereThereIsNone:
    """One warning, and everything works without it."""

    async def without(self, directory: Path, tmp_path: Path) -> list[str]:
        warnings: list[str] = []
        reports = Reports()
        async with open_tiered_store(
            (tmp_path / "payloads").as_uri(),
            {},
            memory_bytes=0,
            shared_memory=settings_of(directory),
            reports=reports,
            warn=warnings.append,
        ) as store:
            ref: PayloadRef = await store.put(
                tenant_id="acme", organization_id="ops", data=TABLE, media_type=MEDIA_TYPE
            )
            assert await store.attach(ref) == TABLE
        assert reports.reads == {"hit": 1}
        return warnings

    async def test_because_the_system_has_none(self, tmp_path: Path) -> None:
        (warning,) = await self.without(tmp_path / "no" / "shm", tmp_path)

        assert "No such file" in warning

    async def test_because_others_could_write_to_it(self, tmp_path: Path) -> None:
        async with opened(tmp_path, store=(tmp_path / "payloads").as_uri()) as tier:
            tier._node.path.chmod(0o777)
            (warning,) = await self.without(tmp_path, tmp_path)

        assert "open to others" in warning

    async def test_because_something_is_in_the_way(self, tmp_path: Path) -> None:
        async with opened(tmp_path, store=(tmp_path / "payloads").as_uri()) as tier:
            path = tier._node.path
        path.symlink_to(tmp_path)
        (warning,) = await self.without(tmp_path, tmp_path)

        assert path.name in warning

    async def test_because_nobody_wants_it(self, tmp_path: Path) -> None:
        settings = SharedMemorySettings(budget_bytes=0, lease_seconds=1, grace_seconds=1, directory=tmp_path)
        async with open_shared_memory(settings, STORE, {}, reports=Reports(), warn=pytest.fail) as tier:
            assert tier is None
        assert names(tmp_path) == []


async def test_whoever_opens_it_is_told_what_keeps_it_tidy(tmp_path: Path) -> None:
    kept: list[Upkeep] = []

    async with open_shared_memory(
        settings_of(tmp_path), STORE, {}, reports=Reports(), warn=pytest.fail, keep=kept.append
    ) as tier:
        assert tier is not None
        (upkeep,) = kept
        assert (upkeep.name, upkeep.once) == ("shared-memory", tier.sweep)
        assert upkeep.every_seconds >= 1.0
        await upkeep.once()
