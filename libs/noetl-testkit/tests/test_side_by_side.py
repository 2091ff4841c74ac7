"""Workers meet in a room, and get pieces of work that keep together what shares servers."""

import itertools
import re
import subprocess
import sys
import threading
from pathlib import Path

from noetl_testkit.side_by_side import WAITING, Room, ports_of, scope_of, turn_of

ROOT = Path(__file__).parents[3]
SUITE = """
import os, pathlib, pytest

INSIDE = pathlib.Path(__file__).parent / "inside"

@pytest.mark.parametrize("n", range(20))
def test_beside_others(n):
    (INSIDE / str(os.getpid())).touch()
    (INSIDE / str(os.getpid())).unlink()

@pytest.mark.alone
@pytest.mark.parametrize("n", range(5))
def test_alone(n):
    assert list(INSIDE.iterdir()) == []
"""
DIES = """
import os

def test_of_a_worker_that_dies():
    os._exit(0)
"""


def test_who_is_alone_waits_for_those_inside_and_holds_up_the_next(tmp_path: Path) -> None:
    rooms = [Room(tmp_path) for _ in range(3)]
    told: list[str] = []
    is_alone, may_leave = threading.Event(), threading.Event()

    def be_alone() -> None:
        with rooms[1].entered(alone=True):
            told.append("alone")
            is_alone.set()
            may_leave.wait(60)
            told.append("leaves")

    def come_late() -> None:
        with rooms[2].entered(alone=False):
            told.append("late")

    alone, late = threading.Thread(target=be_alone), threading.Thread(target=come_late)
    with rooms[0].entered(alone=False):
        alone.start()
        told.append("first")
    assert is_alone.wait(60)
    late.start()
    may_leave.set()
    for thread in (alone, late):
        thread.join(60)
    for room in rooms:
        room.close()

    assert told == ["first", "alone", "leaves", "late"]


def test_others_are_inside_together(tmp_path: Path) -> None:
    one, other = Room(tmp_path), Room(tmp_path)

    with one.entered(alone=False), other.entered(alone=False):
        pass

    one.close()
    other.close()


def test_tests_of_stacks_are_one_piece_of_work_which_is_begun_first() -> None:
    e2e, conformance = "tests/e2e/test_a.py::test_b", "tests/conformance/test_c.py::test_d[e::f]"
    server, unit = "tests/integration/test_g.py::TestH::test_i", "libs/noetl-core/tests/test_j.py::test_k[l]"

    assert scope_of(e2e) == scope_of(conformance)
    assert (scope_of(server), scope_of(unit)) == ("tests/integration/test_g.py", "libs/noetl-core/tests/test_j.py")
    assert turn_of(e2e) == turn_of(conformance) < turn_of(server) < turn_of(unit)


def test_those_that_only_wait_run_beside_them_and_the_longest_computation_is_not_left_for_the_end() -> None:
    stacks, outages, leases = (f"tests/e2e/test_{name}.py::test_a" for name in ("a", "outages", "default_leases"))
    server, seeds, unit = (
        f"{file}::test_a" for file in ("tests/integration/b.py", "tests/simulation/c.py", "libs/d.py")
    )
    in_order = (stacks, outages, leases, server, seeds, unit)

    assert all(turn_of(one) < turn_of(other) for one, other in itertools.pairwise(in_order))
    assert len({scope_of(one) for one in in_order}) == len(in_order)


def test_what_is_said_to_wait_has_a_stack_of_its_own() -> None:
    """Otherwise a second one would be started for it, and stay."""
    for name in WAITING:
        text = (ROOT / name).read_text()
        assert "with local_stack(" in text
        assert not re.search(r"def test_\w+\(\s*stack\b", text)


def test_workers_choose_from_ports_of_their_own() -> None:
    named = [tuple(map(int, ports_of(f"gw{n}").split("-"))) for n in range(8)]

    assert all(first < last < 32_768 for first, last in named)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(named))


def test_a_run_with_workers_ends_well_unless_one_of_them_dies(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["noetl_testkit.side_by_side"]\n')
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(SUITE)

    well = run(tmp_path)
    (tmp_path / "test_d.py").write_text(DIES)
    badly = run(tmp_path)

    assert well.returncode == 0, well.stdout
    assert "50 passed" in well.stdout.splitlines()[-1]
    assert badly.returncode == 1, badly.stdout
    assert "1 failed, 50 passed" in badly.stdout.splitlines()[-1]


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    workers = ("-n", "2", "--max-worker-restart", "0")
    command = [sys.executable, "-m", "pytest", "-q", *workers, "--rootdir", str(directory), str(directory)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
