"""How much processor time each part of the stack takes: where the time goes, whatever else the machine is doing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

_PARENT, _USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM = 1, 11, 12, 13, 14
"""Fields of /proc/PID/stat after the name of the program."""


def processor_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds since its start for each named process, with all that it started; 0 where the system does not say."""
    stats = {pid: stat for pid in _all_pids() if (stat := _stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat[_PARENT], []).append(pid)

    def ticks(pid: int) -> int:
        stat = stats.get(pid)
        if stat is None:
            return 0
        own = stat[_USER] + stat[_SYSTEM] + stat[_ENDED_USER] + stat[_ENDED_SYSTEM]
        return own + sum(ticks(child) for child in children.get(pid, ()))

    return {name: ticks(pid) / os.sysconf("SC_CLK_TCK") for name, pid in pids.items()}


class Others:
    """What everybody else on the machine takes meanwhile: with much of it, no figure is worth anything."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._used, self._taken = self._seconds()

    def shares(self) -> tuple[float, float]:
        """Of all processors, since this was made: used by others, and taken away by the host of this machine."""
        available = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        used, taken = self._seconds()
        return max(used - self._used, 0.0) / available, (taken - self._taken) / available

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Of the machine, less this process with all that it started; and of its host."""
        try:
            total = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=11)[1:9]
        except OSError:
            return 0.0, 0.0
        user, nice, system, _idle, _waiting, *interrupts, taken = map(int, total)
        ours, ticks = processor_seconds({"ours": os.getpid()})["ours"], os.sysconf("SC_CLK_TCK")
        return (user + nice + system + sum(interrupts)) / ticks - ours, taken / ticks


def _all_pids() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:
        return []


def _stat(pid: int) -> list[int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *numbers = text.rpartition(")")[2].split()
    return [0, *map(int, numbers)] if state else None
