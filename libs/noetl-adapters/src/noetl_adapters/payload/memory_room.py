"""How much memory copies may still take: a machine or a container that runs out of it kills processes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

RESERVED_SHARE: Final = 4
"""A quarter of everything that can run out is left to others."""
_CGROUPS: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_UNLIMITED_BYTES: Final = 1 << 60


class _Supply(NamedTuple):
    free: int
    total: int


def room_bytes(directory: int, *, meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> int:
    """What one more file may have in an open directory whose files are memory."""
    supplies = (_file_system(directory), *_machine(meminfo), *_container(cgroups))
    return max(min(free - total // RESERVED_SHARE for free, total in supplies), 0)


def _file_system(directory: int) -> _Supply:
    status = os.fstatvfs(directory)
    return _Supply(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def _machine(meminfo: Path) -> Iterator[_Supply]:
    """Nothing where the system has no such file."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        lines = (line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        kib = {name: int(rest.split()[0]) for name, rest in lines}
        yield _Supply(kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024)


def _container(cgroups: Path) -> Iterator[_Supply]:
    """What its limit leaves; files that it has read can be dropped, so they count as free."""
    second = ("memory.max", "memory.current", "memory.stat", "inactive_file")
    first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
    for directory, names in ((cgroups, second), (cgroups / "memory", first)):
        with suppress(OSError, ValueError):  # the word `max` instead of a number too
            limit, used = (int((directory / name).read_text(encoding="ascii")) for name in names[:2])
            if limit < _UNLIMITED_BYTES:
                yield _Supply(limit - used + _statistic(directory / names[2], names[3]), limit)


def _statistic(file: Path, name: str) -> int:
    for line in file.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
