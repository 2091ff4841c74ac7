"""Processes are killed in the middle of executions; the executions do not notice, or know what happened."""

from pathlib import Path

import pytest
from noetl_cli.dev.processes import ProcessIdentity
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

# The first step says that it runs, and waits until it is let go; when it runs again, it is done at once.
GATED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gated, path: tests/gated}
workload: {directory: /nowhere, rerun_is_done: false}
workflow:
- step: wait
  tool:
    kind: python
    input: {directory: "{{ directory }}", rerun_is_done: "{{ rerun_is_done }}"}
    code: |
      import pathlib, time
      place = pathlib.Path(directory)
      runs = len(list(place.glob("running-*")))
      (place / f"running-{runs}").write_text(str(os.getpid()))
      while not (place / "go").exists() and not (runs and rerun_is_done):
          time.sleep(0.02)
      result = {"runs": runs + 1}
  next: {arcs: [{step: after}]}
- step: after
  tool: {kind: python, input: {runs: "{{ wait.runs }}"}, code: "result = {'runs_before': runs}"}
"""


class Gate:
    """An execution that waits in its first step."""

    def __init__(self, stack: LocalStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        (directory / "gated.yaml").write_text(GATED)

    def start(self, *options: str) -> str:
        """Start it, and return its id as soon as that is known."""
        ran = self._stack.noetl(*self.command(*options), "--no-follow", "-o", "json")
        assert ran.code == 0, ran
        return str(ran.document["execution_id"])

    def command(self, *options: str) -> tuple[str, ...]:
        file = str(self._directory / "gated.yaml")
        return ("run", file, "--set", f"directory={self._directory}", *options)

    def child(self, run: int = 0) -> ProcessIdentity:
        """The process that runs the user's code, once it does."""
        file = self._directory / f"running-{run}"
        text = eventually(lambda: file.read_text() if file.exists() else "", seconds=60.0)
        identity = ProcessIdentity.of(int(text))
        assert identity is not None
        return identity

    def open(self) -> None:
        (self._directory / "go").touch()


@pytest.fixture
def gate(stack: LocalStack, tmp_path: Path) -> Gate:
    tmp_path.chmod(0o755)
    return Gate(stack, tmp_path)


def event_types(stack: LocalStack, execution_id: str) -> list[str]:
    events = stack.noetl("events", execution_id, "-o", "json").document["events"]
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    return [event["event_type"] for event in events]


def test_cancel_ends_the_users_code_within_seconds(stack: LocalStack, gate: Gate) -> None:
    execution_id = gate.start()
    child = gate.child()

    cancelled = stack.noetl("cancel", execution_id, "--reason", "seen enough")

    assert cancelled.code == 0
    eventually(lambda: not child.is_alive(), seconds=30.0)
    assert stack.noetl("status", execution_id, "-o", "json").code == 4
    assert stack.noetl("events", execution_id, "--follow").code == 4
    types = event_types(stack, execution_id)
    assert types[-1] == "execution.cancelled"
    assert stack.noetl("cancel", execution_id).code in (0, 1)
    assert event_types(stack, execution_id) == types


def test_a_step_whose_worker_is_killed_is_run_again_by_another(stack: LocalStack, gate: Gate) -> None:
    execution_id = gate.start("--set", "rerun_is_done=true")
    child = gate.child()

    killed = stack.kill("worker")

    ended = stack.noetl("events", execution_id, "--follow", "-o", "json")
    assert ended.code == 0, ended
    eventually(lambda: not child.is_alive(), seconds=30.0)
    assert stack.pid("worker") != killed
    issued = [
        event for event in ended.lines if event["event_type"] == "command.issued" and event["node_name"] == "wait"
    ]
    assert [event["meta"]["attempt"] for event in issued] == [1, 2]
    (abandoned,) = [event for event in ended.lines if event["event_type"] == "command.abandoned"]
    assert abandoned["meta"]["previous_attempt"] == 1
    status = stack.noetl("status", execution_id, "-o", "json").document
    assert [(step["step"], step["attempt"]) for step in status["steps"]] == [("wait", 2), ("after", 1)]
    assert stack.noetl("result", execution_id, "after", "-o", "json").document["result"] == {"runs_before": 2}


@pytest.mark.parametrize("component", ["api", "planner", "projector", "outbox-publisher", "reaper", "nats", "postgres"])
def test_an_execution_under_way_survives_the_death_of(component: str, stack: LocalStack, gate: Gate) -> None:
    execution_id = gate.start()
    gate.child()

    killed = stack.kill(component)
    assert stack.pid(component) != killed
    gate.open()

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "90")
    assert ended.code == 0, ended
    types = event_types(stack, execution_id)
    assert types.count("command.completed") == 2 and types[-1] == "playbook.completed"


def test_a_follower_sees_every_event_once_although_the_server_is_killed(stack: LocalStack, gate: Gate) -> None:
    with stack.started(*gate.command("--follow", "-o", "json")) as process:
        gate.child()
        stack.kill("api")
        gate.open()
        out, err = process.communicate(timeout=90.0)

    assert process.returncode == 0, err
    assert out.count('"stream_version"') == len(out.splitlines())
    assert "playbook.completed" in out
    assert out.count('"command.completed"') == 2


def test_what_is_started_while_nats_is_down_runs_on_a_worker_that_waits_or_when_it_is_back(
    stack: LocalStack, gate: Gate
) -> None:
    gate.open()
    with stack.held_down("nats"):
        execution_id = gate.start()
        status = stack.noetl("status", execution_id, "-o", "json")
        assert status.code == 0
        assert status.document["status"] in ("RUNNING", "COMPLETED")

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "90")
    assert ended.code == 0, ended
    assert event_types(stack, execution_id)[-1] == "playbook.completed"


def test_an_execution_under_way_goes_on_while_nats_is_down(stack: LocalStack, gate: Gate) -> None:
    execution_id = gate.start()
    gate.child()
    with stack.held_down("nats"):
        gate.open()
        # The result and the next command travel by gRPC: a chain of steps needs no bus.
        ended = stack.noetl("events", execution_id, "--follow", "--timeout", "60")

    assert ended.code == 0, ended
