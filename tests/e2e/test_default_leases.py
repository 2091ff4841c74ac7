"""With the leases of an installation: the dead are replaced in half a minute, and who is to stop is told at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from noetl_cli.connection import Server, connected
from noetl_cli.dev.processes import ProcessIdentity
from noetl_core.ports.leases import ShardLease
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack, local_stack

MOST_SECONDS = 30.0
"""A lease and one tick; it is taken at the end of the lease, so that a tick is left for a machine that is busy."""
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


def owners(stack: LocalStack) -> dict[str, Counter[str]]:
    async def ask() -> Sequence[ShardLease]:
        endpoint = stack.endpoint
        async with connected(Server(address=endpoint.address, token=endpoint.token)) as clients:
            return await clients.shards.list_shards("")

    counts: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
    for lease in asyncio.run(ask()):
        if lease.role in counts:
            counts[lease.role][lease.instance] += 1
    return counts


def are_shared_by(stack: LocalStack, replicas: int) -> bool:
    return all(len(count) == replicas and not count[""] for count in owners(stack).values())


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


def test_shards_of_a_dead_replica_are_served_again_when_its_lease_is_over(replicas: LocalStack) -> None:
    eventually(lambda: are_shared_by(replicas, 3), seconds=120.0)
    with replicas.held_down("planner-2"), replicas.held_down("projector-2"):
        began = time.monotonic()
        eventually(lambda: are_shared_by(replicas, 2), seconds=90.0)
        took = time.monotonic() - began

    assert took < MOST_SECONDS
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
