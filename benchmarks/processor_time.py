"""How much processor time each part of the stack takes: where the time goes, whatever else the machine is doing."""

from __future__ import annotations

import os
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
