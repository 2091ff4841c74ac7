"""Executions that start others: processes are killed while they wait, and they end together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from noetl_cli.dev.processes import ProcessIdentity
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: tests/family/{name}}}\nworkflow:\n"
# Says that it runs, and waits until it is let go; when it runs again, it is done at once.
LEAF = """\
- step: wait
  tool:
    kind: python
    input: {directory: "{{ directory }}"}
    code: |
      import pathlib, time
      place = pathlib.Path(directory)
      runs = len(list(place.glob("running-*")))
      (place / f"running-{runs}").write_text(str(os.getpid()))
      while not (place / "go").exists() and not runs:
          time.sleep(0.02)
      result = {"got": 41}
"""
MIDDLE = """\
- step: down
  tool: {kind: playbook, path: tests/family/leaf, input: {directory: "{{ directory }}"}, return_step: wait}
"""
TOP = """\
- step: call
  tool:
  - name: before
    kind: python
    input: {directory: "{{ directory }}"}
    code: |
      import pathlib
      place = pathlib.Path(directory)
      (place / f"before-{len(list(place.glob('before-*')))}").touch()
      result = {"x": 1}
  - name: child
    kind: playbook
    path: tests/family/middle
    input: {directory: "{{ directory }}"}
    return_step: down
    timeout: "{{ timeout }}"
  - {name: after, kind: noop, result: {sum: "{{ before.x + child.got }}", status: "{{ child.status }}"}}
"""


class Family:
    """Three executions: one waits for one that waits for one that waits for a file."""

    def __init__(self, stack: LocalStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        (directory / "top.yaml").write_text(HEAD.format(name="top") + TOP)

    def start(self, *, timeout: float = 300) -> str:
        ran = self._stack.noetl(
            "run", str(self._directory / "top.yaml"), "--set", f"directory={self._directory}",
            "--set", f"timeout={timeout}", "--no-follow", "-o", "json",
        )  # fmt: skip
        assert ran.code == 0, ran
        return str(ran.document["execution_id"])

    def leaf_process(self) -> ProcessIdentity:
        """The process that runs the leaf's code, once it does."""
        file = self._directory / "running-0"
        text = eventually(lambda: file.read_text() if file.exists() else "", seconds=60.0)
        identity = ProcessIdentity.of(int(text))
        assert identity is not None
        return identity

    def runs_before(self) -> int:
        return len(list(self._directory.glob("before-*")))

    def open(self) -> None:
        (self._directory / "go").touch()

    def events(self, execution_id: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self._stack.noetl("events", execution_id, "-o", "json").document["events"]
        assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
        return events

    def types(self, execution_id: str) -> list[str]:
        return [event["event_type"] for event in self.events(execution_id)]

    def wait_until_parked(self, execution_id: str) -> None:
        eventually(lambda: "command.parked" in self.types(execution_id), seconds=60.0)

    def child_of(self, execution_id: str) -> str:
        (started,) = [event for event in self.events(execution_id) if event["event_type"] == "child.started"]
        return str(started["meta"]["child_execution_id"])

    def status(self, execution_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self._stack.noetl("status", execution_id, "-o", "json").document
        return shown


@pytest.fixture(scope="module")
def others(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The playbooks that are called."""
    directory = tmp_path_factory.mktemp("others")
    for name, workflow in (("leaf", LEAF), ("middle", MIDDLE)):
        (directory / f"{name}.yaml").write_text(HEAD.format(name=name) + workflow)
        registered = stack.noetl("register", str(directory / f"{name}.yaml"))
        assert registered.code == 0, registered


@pytest.fixture
def family(stack: LocalStack, others: None, tmp_path: Path) -> Family:
    tmp_path.chmod(0o755)
    return Family(stack, tmp_path)


def test_who_waits_does_not_notice_that_everybody_is_killed(stack: LocalStack, family: Family) -> None:
    root = family.start()
    family.leaf_process()
    family.wait_until_parked(root)
    runs_before = family.runs_before()

    for component in ("worker", "planner", "api"):
        killed = stack.kill(component)
        assert stack.pid(component) != killed
    family.open()

    ended = stack.noetl("events", root, "--follow", "--timeout", "90")
    assert ended.code == 0, ended
    types = family.types(root)
    assert types.count("child.started") == types.count("command.resumed") == 1
    waiting = types[types.index("command.parked") : types.index("command.resumed")]
    assert "command.abandoned" not in waiting, "nobody held the command while it waited"
    assert family.runs_before() == runs_before, "and it went on where it was"
    result = stack.noetl("result", root, "call", "-o", "json").document["result"]
    assert (result["sum"], result["status"]) == (42, "completed")


def test_cancel_ends_three_generations_and_their_code(stack: LocalStack, family: Family) -> None:
    root = family.start()
    process = family.leaf_process()
    family.wait_until_parked(root)
    middle = family.child_of(root)
    family.wait_until_parked(middle)
    leaf = family.child_of(middle)

    cancelled = stack.noetl("cancel", root, "--reason", "enough")

    assert cancelled.code == 0, cancelled
    eventually(lambda: not process.is_alive(), seconds=30.0)
    for one in (root, middle, leaf):
        assert stack.noetl("status", one).code == 4
    shown = family.status(middle)
    assert (shown["parent_execution_id"], shown["child_count"]) == (root, 1)
    eventually(lambda: [one["execution_id"] for one in family.status(middle)["children"]] == [leaf], seconds=30.0)


def test_a_wait_ends_by_the_logs_clock_and_the_child_goes_on(stack: LocalStack, family: Family) -> None:
    root = family.start(timeout=1)
    family.leaf_process()

    ended = stack.noetl("events", root, "--follow", "--timeout", "90")

    assert ended.code == 1, ended
    assert family.status(root)["error"]["code"] == "PLAYBOOK_TIMEOUT"
    middle = family.child_of(root)
    assert family.status(middle)["status"] == "RUNNING"
    family.open()
    assert stack.noetl("events", middle, "--follow", "--timeout", "90").code == 0
    assert family.types(root)[-1] == "playbook.failed", "a parent that has ended hears no more of its children"


def test_a_family_is_paused_and_goes_on_together(stack: LocalStack, family: Family) -> None:
    root = family.start()
    family.leaf_process()
    family.wait_until_parked(root)
    middle = family.child_of(root)
    leaf = family.child_of(middle)

    paused = stack.noetl("pause", root, "--cascade", "--reason", "lunch", "-o", "json").document
    assert (paused["status"], paused["steered_descendants"]) == ("PAUSED", 2)
    assert [family.status(one)["status"] for one in (root, middle, leaf)] == ["PAUSED"] * 3
    family.open()
    eventually(lambda: family.types(leaf)[-1] == "command.completed", seconds=60.0)

    assert stack.noetl("resume", root, "--cascade").code == 0
    ended = stack.noetl("events", root, "--follow", "--timeout", "90")
    assert ended.code == 0, ended
    assert stack.noetl("result", root, "call", "-o", "json").document["result"]["sum"] == 42
