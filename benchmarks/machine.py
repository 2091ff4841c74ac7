"""What a figure depends on besides the code: the machine, the servers and how durable a commit is."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from benchmarks.figures import median
from scripts.interpreter import unfit

_SETTINGS = ("fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "shared_buffers")
_SYNC_SAMPLES = 50
_BLOCK_BYTES = 8192
_LOOPS, _ROUNDS = 15, 100_000


async def machine_facts(*, owner_dsn: str, directory: Path) -> Mapping[str, str]:
    """Asked of the servers themselves, not of our configuration."""
    connection = await asyncpg.connect(owner_dsn)
    try:
        settings = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in _SETTINGS}
        version = await connection.fetchval("SELECT current_setting('server_version')")
    finally:
        await connection.close()
    return {
        "processors": f"{os.cpu_count()} of {_processor()}",
        "load average before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": ", ".join(filter(None, (platform.python_version(), unfit()))),
        "PostgreSQL": version,
        **{f"PostgreSQL {name}": value for name, value in settings.items()},
        "disk sync of 8 KiB, p50": f"{_sync_seconds(directory) * 1000:.2f} ms",
    }


def loop_milliseconds() -> float:
    """What a plain loop takes just now: on a host that others share, as much as half more than a minute ago."""
    samples = []
    for _ in range(_LOOPS):
        begun, total = time.perf_counter(), 0
        for number in range(_ROUNDS):
            total += number & 7
        samples.append(time.perf_counter() - begun)
    return median(samples) * 1000


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _sync_seconds(directory: Path) -> float:
    """How long the disk takes at least, whatever is written."""
    file = directory / "sync-probe"
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, bytes(_BLOCK_BYTES))
        os.fsync(descriptor)
        samples = []
        for _ in range(_SYNC_SAMPLES):
            begun = time.perf_counter()
            os.pwrite(descriptor, os.urandom(_BLOCK_BYTES), 0)
            os.fsync(descriptor)
            samples.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
        file.unlink()
    return median(samples)
