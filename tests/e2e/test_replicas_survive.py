"""Several of each service: one of them dies or stands still, and the others do its work, once."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from noetl_testkit.eventually import eventually
from noetl_testkit.lease_rows import lease_rows, taken_over
from noetl_testkit.local_stack import LocalStack, local_stack

SETTINGS = {
    "NOETL_DEV_REPLICAS": "planner=3,projector=3,worker=2,reaper=2",
    "NOETL_SHARD_LEASE_SEC": "4",
    "NOETL_SHARD_HEARTBEAT_SEC": "1",
    "NOETL_COMMAND_LEASE_SECONDS": "3",
    "NOETL_HEARTBEAT_SECONDS": "1",
    "NOETL_HEAD_POLL_SECONDS": "1",
    "NOETL_REHINT_SECONDS": "1",
    "NOETL_REAPER_INTERVAL_SECONDS": "1",
}
ROLES = ("planner", "projector")
LEASE_AND_TICK_SECONDS = 4 + 1
SCHEDULING_SECONDS = 5.0
"""Until a process that is awake gets its turn, on a machine that has other things to do."""

LOOP = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: many, path: tests/many}
workflow:
- step: each
  loop: {in: "{{ range(20) | list }}", iterator: number, spec: {mode: parallel, max_in_flight: 4}}
  tool: {kind: python, input: {number: "{{ iter.number }}"}, code: "result = {'square': number * number}"}
  next: {arcs: [{step: after}]}
- step: after
  tool: {kind: noop}
"""

# Says that it runs, and waits until it is let go; when it runs again, it is done at once.
GATED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: held, path: tests/held}
workload: {directory: /nowhere}
workflow:
- step: wait
  tool:
    kind: python
    input: {directory: "{{ directory }}"}
    code: |
      import pathlib, time
      place = pathlib.Path(directory)
      runs = len(list(place.glob("running-*")))
      (place / f"running-{runs}").touch()
      while not runs and not (place / "go").exists():
          time.sleep(0.02)
      result = {"runs": runs + 1}
"""
GATED_ROWS = GATED.replace("held", "held_rows").replace(
    "  tool:\n",
    """\
  loop:
    in: [1]
    iterator: n
    spec: {mode: parallel, engine: inline, frame: {max_rows: 1, lease_seconds: 3, heartbeat_seconds: 1}}
  tool:
""",
    1,
)


@pytest.fixture(scope="module")
def replicas() -> Iterator[LocalStack]:
    with local_stack(SETTINGS) as running:
        yield running


def owners(stack: LocalStack) -> Mapping[str, Counter[str]]:
    """How many shards each instance owns, by role; nobody is an empty name."""
    counts: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
    for one in stack.noetl("shards", "-o", "json").document["shards"]:
        if one["role"] in counts:
            counts[one["role"]][one["instance"] or ""] += 1
    return counts


def is_shared_by(stack: LocalStack, replicas: int) -> bool:
    shown = owners(stack)
    return all(len(shown[role]) == replicas and "" not in shown[role] for role in ROLES)


def started(stack: LocalStack, playbook: str, directory: Path, *options: str) -> str:
    file = directory / "playbook.yaml"
    file.write_text(playbook)
    ran = stack.noetl("run", str(file), *options, "--no-follow", "-o", "json")
    assert ran.code == 0, ran
    return str(ran.document["execution_id"])


def events_of(stack: LocalStack, execution_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = stack.noetl("events", execution_id, "--limit", "5000", "-o", "json").document[
        "events"
    ]
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    return events


def test_the_shards_of_dead_replicas_pass_to_the_others_and_nothing_is_doubled(
    replicas: LocalStack, tmp_path: Path
) -> None:
    eventually(lambda: is_shared_by(replicas, 3))
    assert all(max(count.values()) <= 22 for count in owners(replicas).values())

    with replicas.held_down("planner-2"), replicas.held_down("projector-2"):
        # More than one execution, so that some are in the shards that have just lost their owner.
        executions = [started(replicas, LOOP, tmp_path) for _ in range(3)]
        for execution_id in executions:
            assert replicas.noetl("events", execution_id, "--follow", "--timeout", "100").code == 0
            events = events_of(replicas, execution_id)
            done = Counter(event["event_type"] for event in events)
            assert (done["command.completed"], done["loop.done"], done["playbook.completed"]) == (21, 1, 1)
            assert not done["command.abandoned"]
        eventually(lambda: is_shared_by(replicas, 2))

    eventually(lambda: is_shared_by(replicas, 3))


def test_a_worker_that_stands_still_past_its_lease_is_refused_when_it_goes_on(
    replicas: LocalStack, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    execution_id = started(replicas, GATED, tmp_path, "--set", f"directory={tmp_path}")
    eventually((tmp_path / "running-0").exists)
    first = next(event for event in events_of(replicas, execution_id) if event["event_type"] == "command.claimed")
    pid = int(str(first["meta"]["worker_id"]).rpartition("-")[2])
    assert pid in {replicas.pid("worker"), replicas.pid("worker-2")}

    os.kill(pid, signal.SIGSTOP)
    try:
        assert replicas.noetl("events", execution_id, "--follow", "--timeout", "100").code == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    ended = events_of(replicas, execution_id)

    (tmp_path / "go").touch()
    eventually(lambda: is_idle(replicas, str(first["meta"]["worker_id"])))
    types = Counter(event["event_type"] for event in ended)
    assert (types["command.abandoned"], types["call.done"], types["command.completed"]) == (1, 1, 1)
    assert events_of(replicas, execution_id) == ended
    assert replicas.noetl("result", execution_id, "wait", "-o", "json").document["result"] == {"runs": 2}


def test_a_reaper_that_is_killed_is_replaced_and_silent_work_is_given_up_once(
    replicas: LocalStack, tmp_path: Path
) -> None:
    """Nobody is there who could finish it: both workers stand still, with a command and a frame."""
    tmp_path.chmod(0o755)
    executions: dict[str, str] = {}
    for kind, playbook in (("command", GATED), ("frame", GATED_ROWS)):
        directory = tmp_path / kind
        directory.mkdir(mode=0o755)
        executions[kind] = started(replicas, playbook, directory, "--set", f"directory={directory}")
        eventually((directory / "running-0").exists)
    (elected,) = [row for row in lease_rows(replicas) if row.role == "reaper"]
    other = ({"reaper-local", "reaper-2-local"} - {elected.instance}).pop()
    workers = [replicas.pid("worker"), replicas.pid("worker-2")]

    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        (last,) = lease_rows(replicas, elected.instance)
        with replicas.held_down(elected.instance.removesuffix("-local")):
            took = (taken_over(replicas, [elected], seconds=90.0) - last.now).total_seconds()
            assert took < LEASE_AND_TICK_SECONDS + SCHEDULING_SECONDS
            for kind, execution_id in executions.items():
                eventually(partial(has_given_up, replicas, execution_id, kind), seconds=90.0)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    for kind, execution_id in executions.items():
        assert replicas.noetl("events", execution_id, "--follow", "--timeout", "100").code == 0
        (tmp_path / kind / "go").touch()
        (given_up,) = [one for one in events_of(replicas, execution_id) if one["event_type"] == f"{kind}.abandoned"]
        assert given_up["meta"]["reclaimer"] == f"urn:noetl:reaper:{other}"


def has_given_up(stack: LocalStack, execution_id: str, kind: str) -> bool:
    return any(event["event_type"] == f"{kind}.abandoned" for event in events_of(stack, execution_id))


def is_idle(stack: LocalStack, worker_id: str) -> bool:
    """Heard of again, with nothing left to do."""
    shown = stack.noetl("workers", "-o", "json").document["workers"]
    return any(one["worker_id"] == worker_id and one["busy"] == 0 for one in shown)
