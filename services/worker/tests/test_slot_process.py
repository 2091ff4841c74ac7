"""The process of slots on an executor, with planners that are made up: one whose tools hang for good ends itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from noetl_core.errors import NotAuthenticated
from noetl_worker.bootstrap.control_thread import ControlThread
from noetl_worker.bootstrap.slot_process import HUNG

# A frame is granted to whoever asks first. Its call blocks the loop for good, ends at once, or when it was heard of.
PROGRAM = """
import asyncio, pathlib, sys, time
from datetime import UTC, datetime
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.frames import FrameBeats, FrameClaim, FrameCommit, FrameKey, GrantedFrame
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.rows import FrameRows
from noetl_worker.application.command_end import CommandEnd, failed_result
from noetl_core.errors import NotAuthenticated, Unavailable
from noetl_worker.application.slot_order import SlotOrder
from noetl_worker.bootstrap import control_thread, slot_process, working

place, lease, what = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
slot_process.HUNG_SECONDS = slot_process.PULSE_SECONDS = 0.2
if what == "hangs":  # any other is not given up, however slow the machine is
    control_thread.TAKEN_SECONDS = 0.2


def granted():
    bounds = FrameBounds(max_rows=1, lease_seconds=lease, heartbeat_seconds=lease / 4)
    rows = FrameRows(
        stage_id="7-ab", loop_id="l", index=0, slot=0, start=0, stop=1, total=1, bounds=bounds, values=(0,))
    step = GrantedCommand(
        key=CommandKey(execution_id=7, command_id="7-ab-0/1"), tenant_id="t", organization_id="o", catalog_id="1",
        step="s", activation=1, attempt=1, lease_seconds=lease, idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC), frame=rows)
    return GrantedFrame(key=FrameKey(execution_id=7, frame_id="7-ab-0", attempt=1), step=step, rows=rows)


class Planners:
    was_granted, beats = False, 0

    async def claim_frames(self, worker, slots):
        if what == "refuses":
            return tuple(FrameClaim(slot=slot, refusal=NotAuthenticated.code) for slot in slots)
        if self.was_granted:
            return tuple(FrameClaim(slot=slot, refusal="stage.drained") for slot in slots)
        self.was_granted = True
        return tuple(FrameClaim(slot=slot, frame=granted()) for slot in slots)

    async def heartbeat_frames(self, worker, keys, **_):
        self.beats += 1
        return FrameBeats()

    async def fail_frame(self, worker, key, *what, **of):
        return FrameCommit(stream_version=1)


async def run(command):
    (place / "begun").touch()
    until = time.monotonic() + 600
    while what == "hangs" and time.monotonic() < until:
        time.sleep(0.05)
    while what in ("lasts", "waited") and not planners.beats:
        await asyncio.sleep(0.01)
    return CommandEnd(result=failed_result(Unavailable("ended")))


working.Working.runs = lambda *of, **more: run
order = SlotOrder(
    execution_id=7, stage_id="7-ab", owner="w", pool="default", locator="", max_distance="any", rates="",
    slice_seconds=0.1, token="t", token_seconds=3600.0 if what == "waited" else 0.4,
    token_until=time.time() + 8 if what == "waited" else 0.0, variables={
        "NOETL_API_ADDRESS": "127.0.0.1:1", "NOETL_PLANNER_ADDRESS": "127.0.0.1:1",
        "NOETL_PAYLOAD_URL": (place / "payloads").as_uri()})
process = slot_process._opened[slot_process.os.getpid()] = slot_process.SlotProcess(order)
planners = Planners()
process._commands = slot_process._Guarded(
    planners, planners, is_hung=process._is_hung, at_work=process._working.at_work)
for _ in range(2):
    print(slot_process.run_slots(order.to_json(), [0], "1"), flush=True)
"""


def run_process(place: Path, *, lease: float, what: str) -> subprocess.CompletedProcess[str]:
    (place / "payloads").mkdir()
    command = [sys.executable, "-c", PROGRAM, str(place), str(lease), what]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_a_process_whose_call_blocks_its_loop_for_good_ends_itself_when_its_frame_is_lost(tmp_path: Path) -> None:
    ran = run_process(tmp_path, lease=1.0, what="hangs")

    assert (ran.returncode, ran.stdout) == (HUNG, ""), ran.stderr
    assert (tmp_path / "begun").exists()
    assert "worker.slot_process_hung" in ran.stderr


def test_a_process_whose_calls_end_goes_on_with_the_next_task(tmp_path: Path) -> None:
    ran = run_process(tmp_path, lease=60.0, what="ends")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [str({"frames": n, "left": [], "error": "", "code": ""}) for n in (1, 0)]


def test_a_frame_that_is_heard_of_rarely_is_heard_of_for_the_sake_of_its_token(tmp_path: Path) -> None:
    ran = run_process(tmp_path, lease=3600.0, what="lasts")  # a heartbeat every quarter of it

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("{'frames': 1")


def test_a_token_that_is_all_but_over_when_its_task_gets_a_seat_is_renewed_at_once(tmp_path: Path) -> None:
    ran = run_process(tmp_path, lease=3600.0, what="waited")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("{'frames': 1")


def test_a_token_that_is_refused_is_told_and_the_slots_are_for_the_next_task(tmp_path: Path) -> None:
    ran = run_process(tmp_path, lease=60.0, what="refuses")

    reports = [ast.literal_eval(line) for line in ran.stdout.splitlines()]
    assert [(report["left"], report["code"]) for report in reports] == [([0], "SLOT_REFUSED")] * 2, ran.stderr
    assert NotAuthenticated.code in reports[0]["error"]


async def test_what_is_taken_late_but_in_time_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlThread()
    given_up: list[bool] = []
    due: list[Callable[[], None]] = []
    monkeypatch.setattr(control._loop, "call_later", lambda seconds, callback: due.append(callback))

    async def work() -> int:
        return 7

    assert await control.on_thread(work(), give_up=lambda: given_up.append(True)) == 7
    (when_time_is_over,) = due
    when_time_is_over()

    assert given_up == []
