import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from noetl_cli.dev.component_process import RunRecord, end_recorded
from noetl_cli.dev.processes import ProcessIdentity, descendants, end_process, kill_tree
from noetl_cli.dev.spawn import launch_command
from noetl_testkit.eventually import eventually

SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
STUBBORN = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()",
]
PARENT = [
    sys.executable,
    "-I",
    "-c",
    "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], start_new_session=True); "
    "print(child.pid, flush=True); child.wait()",
    *SLEEPER,
]
Process = subprocess.Popen[bytes]


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start(processes: list[Process], command: list[str]) -> tuple[Process, ProcessIdentity]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    processes.append(process)
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    return process, identity


def test_a_process_is_known_by_its_pid_and_start_together(started: list[Process]) -> None:
    process, identity = start(started, SLEEPER)

    assert identity.is_alive()
    assert not replace(identity, started="some other time").is_alive()
    assert ProcessIdentity.current().pid == os.getpid()

    process.kill()
    eventually(lambda: not identity.is_alive())  # although nobody has collected it yet
    assert process.returncode is None


def test_a_killed_tree_leaves_nobody_even_in_sessions_of_their_own(started: list[Process]) -> None:
    process, identity = start(started, PARENT)
    assert process.stdout is not None
    grandchild = ProcessIdentity.of(int(process.stdout.readline()))
    assert grandchild is not None
    assert grandchild.pid in descendants(process.pid)

    kill_tree(process.pid)

    eventually(lambda: not identity.is_alive() and not grandchild.is_alive())


def test_a_process_that_does_not_listen_is_ended_by_force(started: list[Process]) -> None:
    process, identity = start(started, STUBBORN)
    assert process.stdout is not None
    process.stdout.readline()

    end_process(identity, stop_signal=signal.SIGTERM, stop_seconds=0.2)

    assert process.wait() == -signal.SIGKILL


def test_a_record_leads_to_the_process_that_was_left_behind(started: list[Process], tmp_path: Path) -> None:
    process, identity = start(started, SLEEPER)
    file = tmp_path / "sleeper.json"
    RunRecord(identity=identity, stop_signal=signal.SIGTERM, stop_seconds=5.0).write(file)

    assert end_recorded(file) == identity

    assert process.wait() == -signal.SIGTERM
    assert not file.exists()


def test_a_record_whose_number_belongs_to_a_stranger_harms_nobody(started: list[Process], tmp_path: Path) -> None:
    _, identity = start(started, SLEEPER)
    file = tmp_path / "sleeper.json"
    stale = replace(identity, started="before the last boot")
    RunRecord(identity=stale, stop_signal=signal.SIGTERM, stop_seconds=5.0).write(file)

    assert end_recorded(file) is None

    assert identity.is_alive()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_an_unreadable_record_names_nobody(content: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(content)

    assert end_recorded(file) is None


def test_a_launched_process_does_not_start_under_a_parent_that_is_already_gone(
    started: list[Process],
) -> None:
    beyond_any_pid = str(2**22)
    process, _ = start(started, launch_command(SLEEPER, options=("--parent", beyond_any_pid)))

    assert process.wait() == 1


def test_a_command_that_is_not_there_is_named(started: list[Process]) -> None:
    result = subprocess.run(
        launch_command(["/no/such/program"], options=()), capture_output=True, text=True, check=False
    )

    assert result.returncode == 1
    assert "cannot run /no/such/program" in result.stderr
