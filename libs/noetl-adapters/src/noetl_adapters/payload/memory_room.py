"""How much memory a copy may still take: a machine or a container that runs out of it kills processes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARE: Final = 2
"""One copy takes at most half of what is free."""
_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES: Final = 1 << 60


def room_bytes(directory: int) -> int:
    """What one more file may have in an open directory whose files are memory."""
    system = os.fstatvfs(directory)
    return min(system.f_bavail * system.f_frsize, *_free_memory(Path("/proc/meminfo")), *_free_in_group()) // SHARE


def _free_memory(meminfo: Path) -> Iterator[int]:
    """Nothing where the system has no such file."""
    with suppress(OSError, ValueError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _free_in_group(cgroups: Path = _CGROUPS) -> Iterator[int]:
    """What the limit of a container leaves; files that it has read can be dropped, so they count as free."""
    second = ("memory.max", "memory.current", "memory.stat", "inactive_file")
    first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
    for directory, names in ((cgroups, second), (cgroups / "memory", first)):
        with suppress(OSError, ValueError):  # the word `max` instead of a number too
            limit, used = (int((directory / name).read_text(encoding="ascii")) for name in names[:2])
            if limit < _UNLIMITED_BYTES:
                yield max(limit - used + _statistic(directory / names[2], names[3]), 0)


def _statistic(file: Path, name: str) -> int:
    for line in file.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
