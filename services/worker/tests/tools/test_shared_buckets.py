"""Processes of one machine share a rate: together they are no faster than one alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.tools.shared_buckets import SharedBuckets

TAKES = """
import sys
from functools import partial
from pathlib import Path
from noetl_worker.application.rate_limits import _taken
from noetl_worker.tools.shared_buckets import SharedBuckets

buckets = SharedBuckets(Path(sys.argv[1]))
got = 0
for _ in range(500):
    got += buckets.change("k", partial(_taken, now=5.0, per_second=1.0, burst=100.0)) == 0.0
print(got)
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def limits(directory: Path, clock: Clock) -> RateLimits:
    return RateLimits(clock=clock, sleep=clock.sleep, buckets=SharedBuckets(directory))


async def test_what_one_takes_another_does_not_have(tmp_path: Path) -> None:
    clock = Clock()
    first, second = limits(tmp_path, clock), limits(tmp_path, clock)
    times = []
    for one in (first, second, first, second):
        await one.take("k", rate=2, per_seconds=1, burst=2)
        times.append(clock.now)
    first.close("k", seconds=7)
    await second.take("k", rate=2, per_seconds=1, burst=2)

    assert times == [0.0, 0.0, 0.5, 1.0]
    assert clock.now == pytest.approx(8.0)
    await second.take("other", rate=2, per_seconds=1, burst=2)
    assert clock.now == pytest.approx(8.0), "each key has its own"


def test_processes_that_take_at_the_same_time_take_each_token_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKES, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]

    assert sum(int(one.communicate(timeout=120)[0]) for one in running) == 100


async def test_without_a_place_to_share_a_process_keeps_its_own_rate(tmp_path: Path) -> None:
    clock = Clock()
    alone = limits(tmp_path / "gone", clock)
    alone.share = 0.5
    for _ in range(3):
        await alone.take("k", rate=4, per_seconds=1, burst=1)

    assert clock.now == pytest.approx(1.0)
