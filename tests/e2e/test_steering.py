"""People steer executions and clocks end them, on the real stack: what runs is stopped, what waits is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from noetl_cli.dev.processes import ProcessIdentity
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: steered, path: tests/steered}\n"
# Says that it runs, and waits until it is let go.
WAIT = """
    kind: python
    input: {directory: "{{ directory }}"}
    code: |
      import os, pathlib, time
      place = pathlib.Path(directory)
      (place / "running.new").write_text(str(os.getpid()))
      (place / "running.new").rename(place / "running")
      while not (place / "go").exists():
          time.sleep(0.02)
      result = {"n": 1}
"""
AFTER = """
- step: after
  tool: {kind: noop, result: "{{ wait.n | default('nothing') }}"}
"""


class Steered:
    """An execution that waits in its first step."""

    def __init__(self, stack: LocalStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory

    def start(self, playbook: str) -> str:
        file = self._directory / "steered.yaml"
        file.write_text(HEAD + playbook)
        ran = self._stack.noetl("run", str(file), "--set", f"directory={self._directory}", "--no-follow", "-o", "json")
        assert ran.code == 0, ran
        return str(ran.document["execution_id"])

    def child(self) -> ProcessIdentity:
        """The process that runs the user's code, once it does."""
        file = self._directory / "running"
        text = eventually(lambda: file.read_text() if file.exists() else "", seconds=60.0)
        identity = ProcessIdentity.of(int(text))
        assert identity is not None
        return identity

    def has_stopped(self) -> bool:
        """Whether the user's code runs no more; it may not even have begun when its time was up."""
        file = self._directory / "running"
        identity = ProcessIdentity.of(int(file.read_text())) if file.exists() else None
        return identity is None or not identity.is_alive()

    def let_go(self) -> None:
        (self._directory / "go").touch()

    def give(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)

    def types(self, execution_id: str) -> list[str]:
        events = self._stack.noetl("events", execution_id, "-o", "json").document["events"]
        return [event["event_type"] for event in events]

    def until(self, execution_id: str, holds: Callable[[list[str]], bool]) -> list[str]:
        def found() -> list[str]:
            types = self.types(execution_id)
            return types if holds(types) else []

        return eventually(found, seconds=60.0)

    def status(self, execution_id: str) -> Any:
        return self._stack.noetl("status", execution_id, "-o", "json").document

    def ended(self, execution_id: str) -> int:
        return self._stack.noetl("events", execution_id, "--follow", "--timeout", "90").code

    def post(self, path: str, **body: Any) -> httpx.Response:
        endpoint = self._stack.endpoint
        return httpx.post(
            f"{endpoint.http_url}/api/executions/{path}",
            json=body,
            headers={"Authorization": f"Bearer {endpoint.token}"},
            timeout=60.0,
        )


@pytest.fixture
def steered(stack: LocalStack, tmp_path: Path) -> Steered:
    tmp_path.chmod(0o755)
    return Steered(stack, tmp_path)


def test_a_paused_execution_ends_what_runs_and_goes_on_when_it_is_resumed(stack: LocalStack, steered: Steered) -> None:
    execution_id = steered.start(f"workflow:\n- step: wait\n  tool:{WAIT}  next: {{arcs: [{{step: after}}]}}{AFTER}")
    steered.child()

    paused = steered.post(f"{execution_id}/pause", reason="lunch")
    steered.let_go()
    types = steered.until(execution_id, lambda types: "command.completed" in types)

    assert (paused.status_code, paused.json()["status"]) == (200, "PAUSED")
    assert types[-1] == "command.completed"
    assert steered.status(execution_id)["status"] == "PAUSED"
    assert stack.noetl("resume", execution_id).code == 0
    assert steered.ended(execution_id) == 0
    assert stack.noetl("result", execution_id, "after", "-o", "json").document["result"] == 1


def test_an_end_is_forced_and_the_user_s_code_is_stopped(stack: LocalStack, steered: Steered) -> None:
    execution_id = steered.start(f"workflow:\n- step: wait\n  tool:{WAIT}  next: {{arcs: [{{step: after}}]}}{AFTER}")
    child = steered.child()

    ended = stack.noetl("finalize", execution_id, "--status", "COMPLETED", "--reason", "by hand", "-o", "json")

    assert ended.document["status"] == "COMPLETED"
    eventually(lambda: not child.is_alive(), seconds=60.0)
    assert steered.ended(execution_id) == 0
    late = steered.post(f"{execution_id}/pause")
    assert (late.status_code, late.json()["code"]) == (409, "execution.already_terminal")


def test_a_failed_execution_is_taken_up_again_where_it_failed(stack: LocalStack, steered: Steered) -> None:
    old = steered.start(
        """
workflow:
- step: first
  tool: {kind: noop, result: {n: 7}}
  set: {ctx.kept: "{{ output.data.n }}"}
  next: {arcs: [{step: load}]}
- step: load
  tool:
    kind: python
    input: {directory: "{{ directory }}", n: "{{ first.n }}", kept: "{{ kept }}"}
    code: "result = [open(directory + '/data').read(), n, kept]"
"""
    )
    assert steered.ended(old) == 1
    before = steered.types(old)
    unknown = steered.post(f"{old}/redrive", step="nowhere")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "execution.step_not_found")

    steered.give("data", "mended")
    redriven = stack.noetl("redrive", old, "-o", "json").document

    assert (redriven["redrive_of"], redriven["step"]) == (old, "load")
    assert steered.ended(redriven["execution_id"]) == 0
    result = stack.noetl("result", redriven["execution_id"], "load", "-o", "json").document["result"]
    assert result == ["mended", 7, 7]
    assert steered.types(old) == before


def test_a_step_that_takes_too_long_is_stopped_and_handled(stack: LocalStack, steered: Steered) -> None:
    execution_id = steered.start(
        f"workflow:\n- step: wait\n  spec: {{timeout: 3}}\n  tool:{WAIT}"
        "  next: {arcs: [{step: after, when: \"{{ error.code == 'step.timeout' }}\"}]}" + AFTER
    )

    assert steered.ended(execution_id) == 0

    eventually(steered.has_stopped, seconds=60.0)
    assert stack.noetl("result", execution_id, "after", "-o", "json").document["result"] == "nothing"


def test_an_execution_s_time_is_up_although_its_planner_was_killed(stack: LocalStack, steered: Steered) -> None:
    execution_id = steered.start(f"executor: {{spec: {{timeout: 4}}}}\nworkflow:\n- step: wait\n  tool:{WAIT}")
    steered.until(execution_id, lambda types: "workflow.initialized" in types)

    killed = stack.kill("planner")

    assert stack.pid("planner") != killed
    assert steered.ended(execution_id) == 1
    assert steered.status(execution_id)["error"]["code"] == "execution.timeout"
    eventually(steered.has_stopped, seconds=60.0)
    assert steered.types(execution_id).count("deadline.passed") == 1
