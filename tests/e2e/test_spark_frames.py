"""Frames in slots on real Spark: what is cancelled lets its threads go, who dies loses no row, and nobody starves.

It comes after `test_spark_cluster`, which begins the session of the stack that all share.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from noetl_adapters.spark.seat_shares import RETURN_SECONDS
from noetl_cli.dev.processes import ProcessIdentity
from noetl_testkit.conformance import Came, Case, run_all
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack
from prometheus_client.parser import text_string_to_metric_families

ROWS, SLOTS = 12, 4
SEATS = 2
"""Of the three threads that the stack gives to Spark, those that slots may have."""
START_SECONDS = 400.0
"""A JVM on a busy machine."""
# Each row notes who runs it, waits until rows may go on, and takes its time.
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: slots_on_spark, path: tests/slots_on_spark}
workload: {directory: /nowhere, rows: 0, slots: 0, lease: 0, seconds: 0}
workflow:
- step: work
  loop:
    in: "{{ range(rows | int) | list }}"
    iterator: n
    spec:
      mode: parallel
      max_in_flight: "{{ slots }}"
      engine: spark
      frame: {max_rows: 3, lease_seconds: "{{ lease }}", heartbeat_seconds: "{{ lease | int / 6 }}", max_attempts: 50}
  tool:
    kind: python
    input: {directory: "{{ directory }}", n: "{{ iter.n }}", key: "{{ idempotency_key }}", seconds: "{{ seconds }}"}
    code: |
      import json, os, pathlib, time
      place = pathlib.Path(directory)
      note = place / f"row-{n}-{os.getpid()}"
      note.with_name(f"new-{note.name}").write_text(
          json.dumps({"row": n, "key": key, "code": os.getpid(), "slot": os.getppid()})
      )
      note.with_name(f"new-{note.name}").rename(note)
      while not (place / "go").exists() or (place / f"stay-{os.getppid()}").exists():
          time.sleep(0.02)
      time.sleep(float(seconds))
      result = n * n
  next: {arcs: [{step: sum}]}
- {step: sum, tool: {kind: noop, result: "{{ work.results | sum }}"}}
"""
# Runs in the driver, where Spark tells what it knows of the jobs of an execution.
LOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: jobs_of_spark, path: tests/jobs_of_spark}
workload: {execution: ""}
workflow:
- step: look
  tool:
    kind: spark
    input: {execution: "{{ execution }}"}
    code: |
      def main(spark, execution):
          store = spark.sparkContext._jsc.sc().statusStore()
          jobs, found = store.jobsList(None).iterator(), []
          while jobs.hasNext():
              job = jobs.next()
              if job.jobGroup().isDefined() and job.jobGroup().get().startswith(execution):
                  pool = store.lastStageAttempt(job.stageIds().head()).schedulingPool()
                  found.append({"status": job.status().toString(), "pool": pool})
          return {"session": spark.sparkContext.applicationId, "jobs": found}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """That a row was begun, with which key, and by which processes: the one of the code, and the one of its slot."""

    row: int
    key: str
    code: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What Spark itself says of an execution: how its jobs are, and the pool of each."""

    session: str
    jobs: Sequence[tuple[str, str]]

    @property
    def pools(self) -> set[str]:
        """Of jobs that run."""
        return {pool for status, pool in self.jobs if status == "RUNNING"}


def look(stack: LocalStack, execution: str = "") -> Seen:
    """Jobs of slots whose group begins so."""
    case = Case(name="look", rule="", document=LOOK, expect={}, payload={"execution": execution})
    came = asyncio.run(run_all([case], stack.endpoint, stack.home.root / "payloads"))["look"]
    assert isinstance(came, Came), repr(came)
    told: dict[str, Any] = came.results["look"]
    return Seen(session=told["session"], jobs=[(job["status"], job["pool"]) for job in told["jobs"]])


class Stage:
    """An execution whose rows run at slots on Spark."""

    def __init__(
        self,
        stack: LocalStack,
        directory: Path,
        *,
        rows: int = ROWS,
        slots: int = SLOTS,
        lease: int = 6,
        seconds: float = 0,
    ) -> None:
        self._stack = stack
        self._directory = directory
        directory.mkdir(mode=0o755)
        (directory / "stage.yaml").write_text(PLAYBOOK)
        values = {"directory": directory, "rows": rows, "slots": slots, "lease": lease, "seconds": seconds}
        options = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        ran = stack.noetl("run", str(directory / "stage.yaml"), *options, "--no-follow", "-o", "json")
        assert ran.code == 0, ran
        self.execution_id = str(ran.document["execution_id"])

    def let_go(self, *, but: int = 0) -> None:
        """All rows, except for those of one slot's process."""
        (self._directory / f"stay-{but}").touch()
        (self._directory / "go").touch()

    def notes(self) -> list[Note]:
        """Of the rows that have begun, each time that they did."""
        return [Note(**json.loads(path.read_text())) for path in self._directory.glob("row-*")]

    def at_slots(self, count: int) -> list[Note]:
        """The rows that wait, once each slot has one, in so many processes."""

        def found() -> list[Note]:
            notes = self.notes()
            return notes if len(notes) >= SLOTS and len({note.slot for note in notes}) == count else []

        return eventually(found, seconds=START_SECONDS)

    def seen(self) -> Seen:
        return look(self._stack, f"{self.execution_id}-")

    def until(self, holds: Callable[[Seen], bool]) -> Seen:
        """What Spark says once it says this."""

        def found() -> Seen | None:
            seen = self.seen()
            return seen if holds(seen) else None

        seen = eventually(found)
        assert seen is not None
        return seen

    def status(self) -> str:
        return str(self._stack.noetl("status", self.execution_id, "-o", "json").document["status"])

    def cancel(self) -> None:
        cancelled = self._stack.noetl("cancel", self.execution_id)
        assert cancelled.code == 0, cancelled

    def completed(self) -> list[dict[str, Any]]:
        """What was told of its frames, once it has ended well."""
        followed = self._stack.noetl(
            "events", self.execution_id, "--follow", "--timeout", "300", "-o", "json", seconds=320
        )
        assert followed.code == 0, followed
        result = self._stack.noetl("result", self.execution_id, "sum", "-o", "json").document["result"]
        assert result == sum(n * n for n in range(ROWS))
        frames = [event for event in followed.lines if event["event_type"].startswith("frame.")]
        assert all("." in one["meta"]["worker_id"] for one in frames if one["event_type"] == "frame.dispatched")
        committed = [one["meta"] for one in frames if one["event_type"] == "frame.committed"]
        rows = Counter(row for meta in committed for row in range(meta["start"], meta["stop"]))
        assert rows == Counter(range(ROWS)), "each row is committed once"
        return frames


def slots_held(stack: LocalStack) -> float:
    """By the worker: one whose job has ended is held until its seat is given back."""
    ports = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    text = httpx.get(f"http://127.0.0.1:{ports['worker.ops']}/metrics", timeout=30.0, trust_env=False).text
    (held,) = (
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "noetl_worker_spark_slots"
    )
    return held


def until_all_seats_are_free(stack: LocalStack) -> None:
    """Until no stage has one, nor is expected to come again for one: the next stage gets all of them."""
    free_since = math.inf

    def found() -> bool:
        nonlocal free_since
        if slots_held(stack) or look(stack).pools:
            free_since = math.inf
        free_since = min(free_since, time.monotonic())
        return time.monotonic() - free_since > RETURN_SECONDS

    eventually(found)


@pytest.fixture
def place(stack: LocalStack, tmp_path: Path) -> Path:
    """Where rows leave notes, once nobody has a seat any more."""
    until_all_seats_are_free(stack)
    tmp_path.chmod(0o755)
    return tmp_path


def test_a_cancelled_execution_ends_its_jobs_and_leaves_their_threads_to_another(
    stack: LocalStack, place: Path
) -> None:
    # Slots would notice with their next heartbeat, which is far off: it is the worker that ends their jobs.
    cancelled = Stage(stack, place / "cancelled", lease=600)
    notes = cancelled.at_slots(SEATS)
    processes = [ProcessIdentity.of(pid) for note in notes for pid in (note.code, note.slot)]
    before = cancelled.until(lambda seen: len(seen.jobs) == SEATS)
    assert {status for status, _ in before.jobs} == {"RUNNING"}

    cancelled.cancel()

    after = cancelled.until(lambda seen: not seen.pools)
    assert after.jobs == [("FAILED", pool) for _, pool in before.jobs], "no job came after them"
    eventually(lambda: not any(process is not None and process.is_alive() for process in processes))
    until_all_seats_are_free(stack)
    other = Stage(stack, place / "other")
    other.at_slots(SEATS)
    other.let_go()
    other.completed()
    assert other.seen().session == before.session, "the session went on"
    assert Counter(note.row for note in cancelled.notes()) == Counter(note.row for note in notes), "nobody began again"


def test_rows_of_a_slot_that_is_killed_run_again_with_the_same_keys_when_its_leases_end(
    stack: LocalStack, place: Path
) -> None:
    stage = Stage(stack, place / "stage")
    begun = stage.at_slots(SEATS)
    killed = begun[0].slot
    lost = {note.row for note in begun if note.slot == killed}

    os.kill(killed, signal.SIGKILL)
    stage.let_go()

    frames = stage.completed()
    attempts = [(one["event_type"], one["meta"]) for one in frames if one["meta"].get("start") in lost]
    dispatched = {(meta["start"], meta["attempt"]): meta for kind, meta in attempts if kind == "frame.dispatched"}
    abandoned = {(meta["start"], meta["attempt"]) for kind, meta in attempts if kind == "frame.abandoned"}
    dead = {dispatched[row, 1]["worker_id"] for row in lost}
    assert len(dead) == 1, "one process is one owner"
    assert abandoned >= {(row, 1) for row in lost}
    assert not any(meta["worker_id"] in dead for kind, meta in attempts if kind == "frame.committed")
    for row in lost:
        keys = [note.key for note in stage.notes() if note.row == row]
        assert len(keys) >= 2 and len(set(keys)) == 1, "the key of a row is one"


def test_a_slot_that_stands_still_loses_its_frames_to_others_and_stops_them_when_it_goes_on(
    stack: LocalStack, place: Path
) -> None:
    stage = Stage(stack, place / "stage")
    begun = stage.at_slots(SEATS)
    still = begun[0].slot
    code = [ProcessIdentity.of(note.code) for note in begun if note.slot == still]

    os.kill(still, signal.SIGSTOP)
    try:
        stage.let_go(but=still)
        stage.completed()
    finally:
        with suppress(ProcessLookupError):  # on a busy machine its seat was taken back first, and it with it
            os.kill(still, signal.SIGCONT)

    eventually(lambda: not any(process is not None and process.is_alive() for process in code))
    stage.until(lambda seen: not seen.pools)


def test_slots_that_never_go_on_lose_their_seats_and_others_end_the_stage(stack: LocalStack, place: Path) -> None:
    stage = Stage(stack, place / "stage")
    begun = stage.at_slots(SEATS)
    processes = [ProcessIdentity.of(pid) for note in begun for pid in (note.code, note.slot)]
    session = stage.seen().session

    for slot in {note.slot for note in begun}:  # all that there are: nobody else has a seat
        os.kill(slot, signal.SIGSTOP)
    stage.let_go()

    stage.completed()
    eventually(lambda: not any(process is not None and process.is_alive() for process in processes))
    assert stage.until(lambda seen: not seen.pools).session == session, "it was not ended for them"


def test_two_executions_have_pools_of_their_own_and_neither_waits_for_the_end_of_the_other(
    stack: LocalStack, place: Path
) -> None:
    endless = Stage(stack, place / "endless", rows=5000, seconds=0.1)
    endless.let_go()
    endless.until(lambda seen: len(seen.jobs) >= SEATS)
    short = Stage(stack, place / "short", slots=1)
    eventually(short.notes, seconds=START_SECONDS)

    pools = short.seen().pools  # its row waits, so its job lasts
    others = endless.until(lambda seen: bool(seen.pools)).pools
    assert (len(pools), len(others), pools & others) == (1, 1, set())
    begun = len(endless.notes())
    eventually(lambda: len(endless.notes()) > begun)

    short.let_go()
    short.completed()
    assert endless.status() == "RUNNING"
    endless.cancel()
    endless.until(lambda seen: not seen.pools)
