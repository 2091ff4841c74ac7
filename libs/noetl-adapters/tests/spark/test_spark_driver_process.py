"""How a worker deals with its driver process: a program that speaks the same way stands in for Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from noetl_adapters.spark.driver_process import SparkDriver
from noetl_core.errors import Unavailable
from noetl_core.ports.spark import SparkCall, SparkProgress, SparkSettings, SparkTasks, SparkWork
from noetl_testkit.until import until

STAND_IN = """
import os, sys, time
from noetl_adapters.spark import framing
out, told = sys.stdout.buffer, sys.stdin.buffer
def send(message):
    out.write(framing.pack(message)); out.flush()
settings = framing.read(told)
if settings["settings"]["master"] == "nowhere":
    send({"ready": False, "message": "Spark needs Java"}); sys.exit(0)
if settings["settings"]["master"] == "hangs":
    time.sleep(600)
print("a warning", file=sys.stderr, flush=True)
send({"ready": True, "jvm": os.getpid()})
while True:
    message = framing.read(told)
    if message is None or message.get("stop"):
        break
    if "cancel" in message:
        if "stubborn" not in message["cancel"]:
            send({"id": message["cancel"], "end": True, "failure": {"kind": "timeout", "code": "C", "message": "c"}})
        continue
    if "release" in message:
        send({"id": message["release"], "end": True, "data": message["shares"]})
        continue
    if "tasks" in message:
        send({"id": message["tasks"]["call_id"], "began": True})
        continue
    call = message["call"]
    match call["sql"]:
        case "die":
            os._exit(3)
        case "nonsense":
            out.write(b"\\x00\\x00\\x00\\x02{]"); out.flush()
        case "environment":
            send({"id": call["call_id"], "end": True, "data": dict(os.environ)})
        case "wait":
            send({"id": call["call_id"], "progress": [0, 2, 3, 8]})
        case sql:
            send({"id": call["call_id"], "end": True, "data": sql, "stdout": "printed"})
"""


@dataclass
class Reports:
    states: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    progresses: list[SparkProgress] = field(default_factory=list)

    def session(self, state: str) -> None:
        self.states.append(state)

    def began(self) -> None:
        pass

    def ended(self, outcome: str) -> None:
        self.outcomes.append(outcome)

    def progress(self, call: SparkWork, progress: SparkProgress) -> None:
        self.progresses.append(progress)

    def said(self, line: str) -> None:
        self.lines.append(line)


def a_call(sql: str, *, call_id: str = "call") -> SparkCall:
    return SparkCall(call_id=call_id, tenant_id="t", organization_id="o", execution_id="1", step="s", sql=sql)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@asynccontextmanager
async def a_driver(
    directory: Path, reports: Reports, settings: SparkSettings | None = None
) -> AsyncIterator[SparkDriver]:
    program = directory / "stand_in.py"
    program.write_text(STAND_IN)
    environment = {**os.environ, "NOETL_TOKEN": "a-token", "NOETL_PAYLOAD_URL": "file:///x", "TMPDIR": str(directory)}
    command: Sequence[str] = (sys.executable, str(program))
    driver = SparkDriver(settings or SparkSettings(), environment=environment, reports=reports, program=command)
    async with driver:
        yield driver


async def test_a_session_starts_with_the_first_call_and_serves_all(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports) as driver:
        ends = await asyncio.gather(*(driver.run(a_call(f"q{n}", call_id=str(n))) for n in range(8)))
        pid = driver.process_ids[0]

    assert [end.data for end in ends] == [f"q{n}" for n in range(8)]
    assert ends[0].stdout == "printed"
    assert reports.states == ["starting", "ready", "stopped"]
    assert reports.lines == ["a warning"]
    assert not is_running(pid)


async def test_user_code_is_not_given_the_tokens_of_the_worker(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports) as driver:
        seen = (await driver.run(a_call("environment"))).data

    assert isinstance(seen, dict)
    assert "NOETL_TOKEN" not in seen
    assert seen["NOETL_PAYLOAD_URL"] == "file:///x"


async def test_a_session_that_dies_fails_its_calls_and_the_next_one_starts_another(
    tmp_path: Path, reports: Reports
) -> None:
    async with a_driver(tmp_path, reports) as driver:
        waiting = asyncio.create_task(driver.run(a_call("wait", call_id="w")))
        await until(lambda: reports.progresses)
        lost = await driver.run(a_call("die", call_id="d"))
        also_lost = await waiting
        again = await driver.run(a_call("after"))

    assert lost.failure is not None
    assert (lost.failure.code, lost.failure.retryable) == ("SPARK_SESSION_LOST", True)
    assert also_lost.failure == lost.failure
    assert again.data == "after"
    assert reports.states == ["starting", "ready", "lost", "starting", "ready", "stopped"]
    assert reports.progresses == [SparkProgress(stages_done=0, stages=2, tasks_done=3, tasks=8)]


async def test_a_process_that_was_killed_is_noticed(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports) as driver:
        await driver.warm()
        os.kill(driver.process_ids[0], signal.SIGKILL)
        await until(lambda: "lost" in reports.states)

        assert (await driver.run(a_call("after"))).data == "after"


async def test_a_cancelled_call_lets_go_at_once_and_its_jobs_are_cancelled(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports) as driver:
        running = asyncio.create_task(driver.run(a_call("wait")))
        await until(lambda: reports.progresses)
        before = driver.process_ids
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await driver.run(a_call("after", call_id="2"))).data == "after"
        assert driver.process_ids == before

    assert reports.outcomes == ["cancelled", "ok"]


async def test_a_call_that_cannot_be_cancelled_takes_the_session_with_it(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports, SparkSettings(cancel_seconds=0.1)) as driver:
        running = asyncio.create_task(driver.run(a_call("wait", call_id="stubborn")))
        await until(lambda: reports.progresses)
        running.cancel()
        await until(lambda: "lost" in reports.states)

        assert (await driver.run(a_call("after", call_id="2"))).data == "after"


async def test_what_keeps_spark_from_starting_is_told(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports, SparkSettings(master="nowhere")) as driver:
        with pytest.raises(Unavailable, match="Spark needs Java"):
            await driver.warm()
        end = await driver.run(a_call("q"))

    assert end.failure is not None
    assert (end.failure.code, end.failure.message) == ("SPARK_UNAVAILABLE", "Spark needs Java")


async def test_a_start_that_takes_for_ever_is_given_up(tmp_path: Path, reports: Reports) -> None:
    async with a_driver(tmp_path, reports, SparkSettings(master="hangs", start_seconds=1.0)) as driver:
        with pytest.raises(Unavailable, match="not started within 1 s"):
            await driver.warm()

    assert reports.states == ["starting", "failed"]


async def test_a_session_that_says_what_nobody_understands_is_ended_with_its_calls(
    tmp_path: Path, reports: Reports
) -> None:
    async with a_driver(tmp_path, reports) as driver:
        ends = await asyncio.gather(*(driver.run(a_call(sql, call_id=sql)) for sql in ("wait", "nonsense")))
        again = await driver.run(a_call("after"))

    assert [end.failure.code for end in ends if end.failure] == ["SPARK_SESSION_LOST"] * 2
    assert again.data == "after"
    assert any("JSONDecodeError" in line for line in reports.lines)


async def test_tasks_say_when_they_have_seats_and_shares_of_them_are_released(tmp_path: Path, reports: Reports) -> None:
    tasks = SparkTasks(call_id="7/x", execution_id="7", step="s", function="m:f", common={}, shares=[0, 1])
    begun: list[str] = []
    async with a_driver(tmp_path, reports) as driver:
        driver.release("7/x", [1])  # nobody is there yet
        running = asyncio.create_task(driver.run(tasks, began=lambda: begun.append("7/x")))
        await until(lambda: begun)
        driver.release("7/y", [0, 1])  # nobody's
        driver.release("7/x", [1])
        end = await running

    assert (begun, end.data) == (["7/x"], [1])
