"""Payloads on a disk of this machine: bounded, there again after a restart, and compared at every read."""

import asyncio
import fcntl
import os
import secrets
import shutil
import stat
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from noetl_core.errors import Unavailable
from noetl_core.payloads import PayloadPart, PayloadRef

from noetl_adapters.payload.tiers import FAILED, TOO_LARGE, Miss, TierReports, copy_name

DISK = "disk"
LARGEST_SHARE = 4
"""One payload gets a quarter of the budget at most."""
MAX_FILES = 100_000
"""However small they are: the list of them is kept in memory."""
_MAX_OWNERS = 64


class _File(NamedTuple):
    size: int
    path: Path


class DiskTier:
    """Files named after the address of a payload; nothing is synced, since a file that went bad is a miss."""

    name = DISK
    verified = False
    is_memory = False

    def __init__(self, directory: Path, *, budget_bytes: int, reports: TierReports) -> None:
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._reports = reports
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._size = 0
        self._find_files()

    async def load(self, ref: PayloadRef) -> bytes | Miss:
        """What the file has; the caller compares it."""
        return await self._read(copy_name(ref), 0, None)

    async def load_part(self, ref: PayloadRef, part: PayloadPart) -> bytes | Miss:
        """What the file has there; no more of it is read."""
        return await self._read(copy_name(ref), part.start, part.bytes)

    async def _read(self, name: str, start: int, size: int | None) -> bytes | Miss:
        if name not in self._files:
            return Miss.ABSENT
        try:
            data = await asyncio.to_thread(_read_and_touch, self._files[name].path, start, size)
        except OSError:
            self._drop(name)
            return Miss.ABSENT
        if name in self._files:
            self._files.move_to_end(name)
        return data

    async def keep(self, ref: PayloadRef, data: bytes, *, produced: bool) -> None:
        """Write the file aside and rename it, so that no reader sees a part of it."""
        name = copy_name(ref)
        if name in self._files:
            return
        if len(data) > self._budget_bytes // LARGEST_SHARE:
            self._reports.refused(self.name, TOO_LARGE)
            return
        path = self._directory / name[:2] / name
        try:
            await asyncio.to_thread(self._write, path, data)
        except OSError:  # a full disk costs nothing but the copy
            self._reports.refused(self.name, FAILED)
            return
        self._size += len(data) - (self._files[name].size if name in self._files else 0)
        self._files[name] = _File(len(data), path)
        self._make_room()

    async def forget(self, ref: PayloadRef) -> None:
        """Remove the file."""
        self._drop(copy_name(ref))
        self._reports.holds(self.name, self._size)

    def _make_room(self) -> None:
        while self._size > self._budget_bytes or len(self._files) > MAX_FILES:
            self._drop(next(iter(self._files)))
        self._reports.holds(self.name, self._size)

    def _drop(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            self._size -= file.size
            with suppress(OSError):
                file.path.unlink(missing_ok=True)

    def _find_files(self) -> None:
        """What an earlier process left, the least recently used first; half-written files are removed."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        found = []
        for path in self._directory.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(OSError):  # it cannot be read either, then
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, status.st_size, path))
        for _, size, path in sorted(found):
            self._files[path.name] = _File(size, path)
            self._size += size
        self._make_room()

    @property
    def _temporary(self) -> Path:
        return self._directory / "tmp"

    def _write(self, path: Path, data: bytes) -> None:
        temporary = self._temporary / secrets.token_hex(16)
        for directory in (self._temporary, path.parent):  # somebody may have emptied the cache
            directory.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def owned_directory(root: Path) -> Iterator[Path]:
    """A directory below the root that no other process uses: budgets are counted in memory.

    The first free one of `0`, `1`, … is taken, so that who starts again finds what it had.
    """
    for number in range(_MAX_OWNERS):
        directory = root / str(number)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise Unavailable(f"the payload cache {root} cannot be used: {exc.strerror}") from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield directory
        finally:
            os.close(descriptor)
        return
    raise Unavailable(f"the payload cache {root} is used by {_MAX_OWNERS} processes already")


def _read_and_touch(path: Path, start: int, size: int | None) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size)
    with suppress(OSError):
        os.utime(path)  # so that a later process knows what was used last
    return data
