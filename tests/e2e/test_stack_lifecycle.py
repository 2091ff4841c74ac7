"""The stack itself: what it keeps when it stops, what it leaves running, and the demonstration of it all."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from noetl_adapters.payload.shm_directory import SHM_DIRECTORY, directory_name
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.sql import fetch_value
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack, environment_of_nobody, local_stack

GATED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gated, path: tests/gated}
workload: {directory: /nowhere}
workflow:
- step: wait
  tool:
    kind: python
    input: {directory: "{{ directory }}"}
    code: |
      import pathlib, time
      place = pathlib.Path(directory)
      (place / "running").touch()
      while not (place / "go").exists():
          time.sleep(0.02)
      result = {}
  next: {arcs: [{step: after}]}
- step: after
  tool: {kind: noop}
"""

DEMO = Path(__file__).parents[2] / "scripts" / "demo.sh"


def processes(stack: LocalStack) -> list[ProcessIdentity]:
    found = [component.process for component in stack.state().components.values()]
    return [process for process in found if process is not None]


def test_a_stack_that_is_stopped_or_killed_comes_back_with_all_it_had(examples: Path) -> None:
    with local_stack() as stack:
        ran = stack.noetl("run", str(examples / "hello_world.yaml"), "-o", "json")
        assert ran.code == 0, ran
        execution_id, endpoint, first = ran.document["execution_id"], stack.endpoint, processes(stack)
        assert len(first) == 8
        shared_memory = SHM_DIRECTORY / directory_name(endpoint.payload_url, {})
        assert shared_memory.exists()

        down = stack.noetl("dev", "down")
        assert (down.code, down.out) == (0, "stopped\n")
        assert not any(process.is_alive() for process in first)
        assert not shared_memory.exists()
        away = stack.noetl("status", execution_id)
        assert (away.code, "start one with: noetl dev up" in away.err) == (5, True)

        assert stack.noetl("dev", "up").code == 0
        assert stack.endpoint == endpoint
        assert stack.noetl("status", execution_id, "-o", "json").document["status"] == "COMPLETED"

        second = processes(stack)
        os.kill(stack.state().supervisor.pid, signal.SIGKILL)
        eventually(lambda: not any(process.is_alive() for process in second), seconds=30.0)
        assert stack.noetl("dev", "status").code == 1
        assert stack.noetl("dev", "down").code == 0
        assert not shared_memory.exists()  # although nobody could stop in good order

        assert stack.noetl("dev", "up").code == 0
        assert stack.noetl("run", str(examples / "hello_world.yaml"), "-o", "json").code == 0
        listed = stack.noetl("list", "-o", "json").document["executions"]
        assert len(listed) == 2


def test_a_restored_backup_goes_on_although_the_bus_tells_of_what_it_lost(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    playbook = tmp_path / "gated.yaml"
    playbook.write_text(GATED)
    with local_stack() as stack:
        started = stack.noetl("run", str(playbook), "--set", f"directory={tmp_path}", "--no-follow", "-o", "json")
        execution_id = started.document["execution_id"]
        eventually((tmp_path / "running").exists)
        assert stack.noetl("pause", execution_id).code == 0
        (tmp_path / "go").touch()
        eventually(lambda: "command.completed" in stack.noetl("events", execution_id).out)
        assert stack.noetl("dev", "down").code == 0
        database, backup = stack.home.root / "postgres", tmp_path / "backup"
        shutil.copytree(database, backup)

        # What happens now is lost by the restore: only the bus has heard of it, and nobody has listened yet.
        assert stack.noetl("dev", "up").code == 0
        assert stack.noetl("db", "restored", "--dsn", stack.owner_dsn).code == 0
        stack.kill("outbox-publisher")
        with stack.held_down("projector"):
            assert stack.noetl("resume", execution_id).code == 0
            assert stack.noetl("events", execution_id, "--follow").code == 0
            eventually(lambda: fetch_value(stack.owner_dsn, "SELECT count(*) FROM noetl.outbox") == 0)
            assert stack.noetl("dev", "down").code == 0
        shutil.rmtree(database)
        shutil.copytree(backup, database)

        assert stack.noetl("dev", "up").code == 0
        eventually(lambda: dropped_messages(stack) > 0)
        assert stack.noetl("status", execution_id, "-o", "json").document["status"] == "PAUSED"
        assert stack.noetl("resume", execution_id).code == 0
        assert stack.noetl("events", execution_id, "--follow").code == 0
        status = stack.noetl("status", execution_id, "-o", "json").document
        assert [(step["step"], step["attempt"]) for step in status["steps"]] == [("wait", 1), ("after", 1)]


def dropped_messages(stack: LocalStack) -> float:
    port = json.loads(stack.home.ports_file.read_text())["projector.ops"]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30.0, trust_env=False).text
    found = re.search(r"^noetl_projector_foreign_messages_total(?:\{.*\})? (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_the_demonstration_shows_an_execution_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demonstration(tmp_path) as process:
        out, _ = process.communicate(timeout=180.0)

    assert process.returncode == 0, out
    assert "COMPLETED in " in out
    assert 'shout: {"length": 11, "text": "HELLO, ADA!"}' in out
    assert "18  " in out and "playbook.completed" in out
    assert list(tmp_path.iterdir()) == []


def test_a_demonstration_that_is_interrupted_leaves_nothing_behind_either(tmp_path: Path) -> None:
    with demonstration(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("  postgres") and "ready" in line:
                break
        (postmaster,) = tmp_path.glob("*/stack/postgres/data/postmaster.pid")
        postgres = ProcessIdentity.of(int(postmaster.read_text().splitlines()[0]))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, _ = process.communicate(timeout=120.0)

    assert process.returncode == 130, out
    assert postgres is not None
    assert not postgres.is_alive()
    assert list(tmp_path.iterdir()) == []


@contextmanager
def demonstration(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    temporary.chmod(0o711)
    with subprocess.Popen(
        ["/bin/bash", str(DEMO)],
        env={**environment_of_nobody(), "TMPDIR": str(temporary), "VENV": sys.prefix},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
