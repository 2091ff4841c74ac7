"""With the leases of an installation: the dead are replaced in half a minute, and who is to stop is told at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from noetl_cli.connection import Server, connected
from noetl_cli.dev.processes import ProcessIdentity
from noetl_core.sharding import shard_of
from noetl_testkit.eventually import eventually
from noetl_testkit.lease_rows import lease_rows, taken_over
from noetl_testkit.local_stack import LocalStack, local_stack

SHARDS = 64
MOST_SECONDS = 30.0
"""A lease and one tick."""
PUSH_SECONDS = 15.0
ROLES = ("planner", "projector")
SETTINGS = {
    "NOETL_DEV_REPLICAS": "planner=3,projector=3",
    # So far away that nothing can be told by a heartbeat.
    "NOETL_COMMAND_LEASE_SECONDS": "600",
    "NOETL_HEARTBEAT_SECONDS": "200",
}
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: tests/{name}}}
workload: {{directory: /nowhere}}
"""
WAITING = """\
workflow:
- step: wait
  {spec}
  tool:
    kind: python
    input: {{directory: "{{{{ directory }}}}"}}
    code: |
      import os, pathlib, time
      place = pathlib.Path(directory)
      (place / "running.new").write_text(str(os.getpid()))
      (place / "running.new").rename(place / "running")
      time.sleep(3600)
"""
SQUARES = """\
workflow:
- step: each
  loop: {in: "{{ range(20) | list }}", iterator: number, spec: {mode: parallel, max_in_flight: 4}}
  tool: {kind: noop, result: "{{ iter.number * iter.number }}"}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
"""
PARENT = """\
workflow:
- step: call
  tool:
    {kind: playbook, path: tests/pushed_child, input: {directory: "{{ directory }}"}, return_step: wait, timeout: 900}
"""


@pytest.fixture(scope="module")
def replicas() -> Iterator[LocalStack]:
    with local_stack(SETTINGS) as running:
        yield running


def are_shared_by(stack: LocalStack, replicas: int) -> bool:
    shares: dict[str, set[str]] = {role: set() for role in ROLES}
    for row in lease_rows(stack):
        shares.setdefault(row.role, set()).add(row.instance)
    return all(len(shares[role]) == replicas and "" not in shares[role] for role in ROLES)


def start_squares(stack: LocalStack, count: int) -> list[int]:
    async def ask() -> list[int]:
        endpoint = stack.endpoint
        async with connected(Server(address=endpoint.address, token=endpoint.token)) as clients:
            begun = [await clients.executions.execute(None, path="tests/squares") for _ in range(count)]
        return [one.execution_id for one in begun]

    return asyncio.run(ask())


def start(stack: LocalStack, directory: Path, name: str, workflow: str) -> str:
    directory.chmod(0o755)
    file = directory / f"{name}.yaml"
    file.write_text(HEAD.format(name=name) + workflow)
    ran = stack.noetl("run", str(file), "--set", f"directory={directory}", "--no-follow", "-o", "json")
    assert ran.code == 0, ran
    return str(ran.document["execution_id"])


def user_code(directory: Path) -> ProcessIdentity:
    """The process that runs it, once it does."""
    file = directory / "running"
    identity = ProcessIdentity.of(int(eventually(lambda: file.exists() and file.read_text(), seconds=90.0)))
    assert identity is not None
    return identity


def test_shards_of_the_dead_are_served_again_within_half_a_minute_and_nothing_is_doubled(
    replicas: LocalStack, tmp_path: Path
) -> None:
    (tmp_path / "squares.yaml").write_text(HEAD.format(name="squares") + SQUARES)
    assert replicas.noetl("register", str(tmp_path / "squares.yaml")).code == 0
    eventually(lambda: are_shared_by(replicas, 3), seconds=120.0)
    lost = lease_rows(replicas, "planner-2-local", "projector-2-local")
    assert {row.role for row in lost} == set(ROLES)
    dead = {role: {row.shard_id for row in lost if row.role == role} for role in ROLES}

    executions = start_squares(replicas, 4)  # under way when it happens
    killed_at = lease_rows(replicas)[0].now
    with replicas.held_down("planner-2"), replicas.held_down("projector-2"):
        while not all(any(shard_of(one, SHARDS) in shards for one in executions) for shards in dead.values()):
            executions += start_squares(replicas, 1)  # until some wait for each of the dead
        took = (taken_over(replicas, lost, seconds=120.0) - killed_at).total_seconds()
        ends = {
            one: replicas.noetl("events", str(one), "--follow", "--timeout", "120", "-o", "json") for one in executions
        }

    assert took <= MOST_SECONDS
    for execution_id, ended in ends.items():
        assert ended.code == 0, execution_id
        events = ended.lines
        assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
        done = Counter(event["event_type"] for event in events)
        assert (done["command.completed"], done["loop.done"], done["playbook.completed"]) == (21, 1, 1)
        assert (done["command.issued"], done["command.abandoned"]) == (21, 0)
    eventually(lambda: are_shared_by(replicas, 3), seconds=120.0)


def test_who_runs_a_cancelled_execution_or_one_below_it_is_told_at_once(replicas: LocalStack, tmp_path: Path) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(HEAD.format(name="pushed_child") + WAITING.format(spec=""))
    assert replicas.noetl("register", str(child)).code == 0
    root = start(replicas, tmp_path, "pushed_parent", PARENT)
    process = user_code(tmp_path)

    assert replicas.noetl("cancel", root).code == 0
    began = time.monotonic()

    eventually(lambda: not process.is_alive(), seconds=90.0)
    assert time.monotonic() - began < PUSH_SECONDS
    assert replicas.noetl("status", root).code == 4


def test_who_runs_a_step_whose_time_is_up_is_told_at_once(replicas: LocalStack, tmp_path: Path) -> None:
    execution_id = start(replicas, tmp_path, "late", WAITING.format(spec="spec: {timeout: 6}"))
    process = user_code(tmp_path)

    assert replicas.noetl("events", execution_id, "--follow", "--timeout", "90").code == 1
    began = time.monotonic()
    eventually(lambda: not process.is_alive(), seconds=90.0)
    assert time.monotonic() - began < PUSH_SECONDS
