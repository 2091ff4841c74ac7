"""Room in memory: the scarcest of file system, machine and container decides, and a quarter is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from noetl_adapters.payload.memory_room import room_bytes

MIB = 1024 * 1024


class Machine:
    """What a system would say about itself."""

    def __init__(self, root: Path, directory: int) -> None:
        self.meminfo, self.cgroups = root / "meminfo", root / "cgroups"
        self._directory = directory
        (self.cgroups / "memory").mkdir(parents=True)

    def room(self) -> int:
        return room_bytes(self._directory, meminfo=self.meminfo, cgroups=self.cgroups)

    def has(self, *, free: int, total: int) -> None:
        self.meminfo.write_text(
            f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {free // 1024} kB\nHugePages_Total: 0\n"
        )

    def limits(self, *, maximum: object, current: int, inactive: int) -> None:
        self._write(maximum, current, f"anon 5\ninactive_file {inactive}\n", names=("max", "current"), below="")

    def limits_as_of_old(self, *, maximum: int, current: int, inactive: int) -> None:
        statistics = f"inactive_file 5\ntotal_inactive_file {inactive}\n"
        self._write(maximum, current, statistics, names=("limit_in_bytes", "usage_in_bytes"), below="memory")

    def _write(self, maximum: object, current: int, statistics: str, *, names: tuple[str, str], below: str) -> None:
        for name, value in zip((*names, "stat"), (maximum, current, statistics), strict=True):
            (self.cgroups / below / f"memory.{name}").write_text(f"{value}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    directory = os.open(tmp_path, os.O_RDONLY)
    yield Machine(tmp_path, directory)
    os.close(directory)


def test_what_nothing_is_known_of_limits_nothing_but_the_file_system(machine: Machine, tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)

    assert 0 <= machine.room() <= status.f_blocks * status.f_frsize


def test_a_quarter_of_the_machine_is_left_alone(machine: Machine) -> None:
    machine.has(free=30 * MIB, total=100 * MIB)

    assert machine.room() == 5 * MIB


def test_less_than_a_quarter_is_no_room(machine: Machine) -> None:
    machine.has(free=20 * MIB, total=100 * MIB)

    assert machine.room() == 0


def test_the_limit_of_a_container_counts_and_what_it_can_drop_is_free(machine: Machine) -> None:
    machine.has(free=90 * MIB, total=100 * MIB)
    machine.limits(maximum=40 * MIB, current=35 * MIB, inactive=10 * MIB)

    assert machine.room() == 5 * MIB


def test_older_systems_tell_it_elsewhere(machine: Machine) -> None:
    machine.limits_as_of_old(maximum=40 * MIB, current=35 * MIB, inactive=10 * MIB)

    assert machine.room() == 5 * MIB


def test_no_limit_is_none(machine: Machine) -> None:
    machine.has(free=30 * MIB, total=100 * MIB)
    machine.limits(maximum="max", current=35 * MIB, inactive=0)
    machine.limits_as_of_old(maximum=9_223_372_036_854_771_712, current=35 * MIB, inactive=0)

    assert machine.room() == 5 * MIB
