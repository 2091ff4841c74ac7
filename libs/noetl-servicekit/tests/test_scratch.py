"""Directories that go with their processes, also with those that are killed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from noetl_servicekit.scratch import remove_left_over, scratch_directory

KEEP = """
import asyncio, sys
from noetl_servicekit.scratch import scratch_directory

async def keep():
    async with scratch_directory("noetl-test-") as directory:
        (directory / "spill").mkdir()
        (directory / "spill" / "large").write_text("x" * 1000)
        print(directory, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(keep())
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def found(temporary: Path) -> set[Path]:
    return set(temporary.iterdir())


def keeper() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", KEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def directory_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


async def test_a_directory_is_gone_with_whoever_used_it(temporary: Path) -> None:
    async with scratch_directory("noetl-test-") as directory:
        (directory / "file").write_text("x")
        assert directory.parent == temporary

    assert found(temporary) == set()


async def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_uses_is_not(
    temporary: Path,
) -> None:
    with keeper() as killed, keeper() as living:
        left, used = directory_of(killed), directory_of(living)
        killed.kill()
        killed.wait()
        assert (left / "spill" / "large").exists()

        async with scratch_directory("noetl-test-") as ours:
            assert found(temporary) == {used, ours}
        living.communicate("")

    assert found(temporary) == set()


async def test_directories_that_are_not_ours_to_judge_stay(temporary: Path) -> None:
    unmarked, other = temporary / "noetl-test-unmarked", temporary / "noetl-other-x"
    for directory in (unmarked, other):
        directory.mkdir()
    (other / ".owner").touch()

    remove_left_over("noetl-test-")

    assert unmarked.exists()
    assert other.exists()
