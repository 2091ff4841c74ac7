"""When frames and commands are heard of: frames as their policies say, commands in rounds, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_core.errors import Unavailable
from noetl_core.ports.commands import ClaimOutcome, CommandKey, GrantedCommand, Heartbeats, Worker
from noetl_core.ports.frames import FrameBeats, FrameClaim, FrameCommit, FrameKey, GrantedFrame, StageSlot
from noetl_core.ports.spark import SparkProgress, SparkTasks
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.rows import FrameRows
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.simulation.loop import VirtualLoop
from noetl_worker.application.call_progress import CallProgress
from noetl_worker.application.command_end import CommandEnd, CommandPark, failed_result
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.frame_work import WorkOfPlanners, slot_key
from noetl_worker.application.slots import Slots
from noetl_worker.bootstrap.slot_process import _Guarded
from noetl_worker.entrypoints.work_loop import keep_alive
from noetl_worker.telemetry import WorkerMetrics

WORKER = Worker(worker_id="w")
ROUND_SECONDS = 15.0
COMMAND = CommandKey(execution_id=1, command_id="c")


def slot(number: int, execution_id: int = 1) -> CommandKey:
    return slot_key(execution_id, stage_id="1-s", slot=number)


class Planners:
    """Grants the frames and commands of which it knows, and remembers when it heard of each."""

    def __init__(self, loop: VirtualLoop, **policies: tuple[float, float]) -> None:
        self.loop = loop
        self.policies = policies
        """Lease and heartbeat of a frame, by its slot: `s0`, `s1`, …"""
        self.heard: dict[str, list[float]] = {}
        self.following: GrantedFrame | None = None
        self.lease_left: float | None = None
        """Of the next frames that are granted."""
        self.is_away: Callable[[], bool] = lambda: False
        self.silent: frozenset[int] = frozenset()
        """Executions of whoever does not answer for ten seconds, and then is not there."""

    def frame(self, number: int, execution_id: int = 1) -> GrantedFrame:
        lease, heartbeat = self.policies[f"s{number}"]
        rows = FrameRows(
            stage_id="1-s",
            loop_id="l",
            index=number,
            slot=number,
            start=number,
            stop=number + 1,
            total=10,
            bounds=FrameBounds(lease_seconds=lease, heartbeat_seconds=heartbeat),
            values=(number,),
        )
        step = replace(command(lease), frame=rows)
        return GrantedFrame(
            key=FrameKey(execution_id=execution_id, frame_id=f"f{number}", attempt=1),
            step=step,
            rows=rows,
            lease_left_seconds=self.lease_left,
        )

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        return tuple(ClaimOutcome(key=key, command=command(60.0)) for key in keys)

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        await asyncio.sleep(0.01)
        return tuple(FrameClaim(slot=slot, frame=self.frame(slot.slot, slot.execution_id)) for slot in slots)

    async def fail_frame(self, worker: Worker, key: FrameKey, *what: Any, **of: Any) -> FrameCommit:
        return FrameCommit(stream_version=1, next=self.following)

    async def heartbeat(self, worker: Worker, keys: Sequence[CommandKey], **_: Any) -> Heartbeats:
        self._hear([key.command_id for key in keys])
        await self._answer(key.execution_id for key in keys)
        return Heartbeats()

    async def heartbeat_frames(self, worker: Worker, keys: Sequence[FrameKey], **_: Any) -> FrameBeats:
        self._hear([key.frame_id for key in keys])
        await self._answer(key.execution_id for key in keys)
        if self.is_away():
            raise Unavailable("away")
        return FrameBeats()

    async def _answer(self, executions: Iterable[int]) -> None:
        if self.silent.intersection(executions):
            await asyncio.sleep(10.0)
            raise Unavailable("no answer")

    def _hear(self, names: Sequence[str]) -> None:
        for name in names:
            self.heard.setdefault(name, []).append(round(self.loop.time(), 2))


def command(lease: float) -> GrantedCommand:
    return GrantedCommand(
        key=COMMAND,
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=lease,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


class Workplace:
    """A worker's slots and the loop that keeps their claims, in virtual time."""

    def __init__(self, *, in_slot_process: bool = False, **policies: tuple[float, float]) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]  # what nobody needs here is not there
        self.planners = Planners(self.loop, **policies)
        self.progress = CallProgress()
        self.looks = 0
        self.ends: dict[str, float] = {}
        """How long each frame takes; others take for ever."""
        self.ended: dict[str, float] = {}
        both: Any = self.planners
        guarded = _Guarded(both, both, is_hung=lambda: False, at_work=FramesAtWork())
        self.slots = Slots(
            guarded if in_slot_process else WorkOfPlanners(both, both),
            self._run,
            worker=WORKER,
            size=64,
            metrics=WorkerMetrics(MetricSet()),
            clock=self.loop.time,
            progress=self.progress,
        )

    async def _run(self, granted: GrantedCommand) -> CommandEnd | CommandPark:
        seconds = self.ends.get(granted.key.command_id)
        try:
            await (asyncio.Event().wait() if seconds is None else asyncio.sleep(seconds))
        finally:
            self.ended[granted.key.command_id] = self.loop.time()
        return CommandEnd(result=failed_result(Unavailable("ended")))

    def _look(self) -> None:
        self.looks += 1
        assert self.looks < 10_000, "time stands still"

    def run(self, seconds: float, *claims: tuple[float, CommandKey], begins_at: float = 0.0) -> dict[str, list[float]]:
        """Claim each at its time; whom the planners have heard of, and when."""

        async def work() -> None:
            await asyncio.sleep(begins_at)
            alive = asyncio.create_task(keep_alive(self.slots, every_seconds=ROUND_SECONDS, beat=self._look))
            for at, key in claims:
                await asyncio.sleep(at - self.loop.time())
                await self.slots.claim([key])
            await asyncio.sleep(seconds - self.loop.time())
            assert not alive.done(), alive.exception()
            alive.cancel()

        try:
            self.loop.run_until(work())
        finally:
            self.loop.end()
        return self.planners.heard


@pytest.mark.parametrize("in_slot_process", [False, True])
def test_a_frame_is_heard_of_as_often_as_its_policy_says(in_slot_process: bool) -> None:
    place = Workplace(in_slot_process=in_slot_process, s0=(120.0, 5.0))
    assert place.run(31.0, (2.0, slot(0))) == {"f0": [7.0, 12.0, 17.0, 22.0, 27.0]}


def test_a_frame_that_asks_for_it_seldom_is_heard_of_no_more_often_and_no_later() -> None:
    heard = Workplace(s0=(240.0, 50.0)).run(120.0, (7.0, slot(0)))
    assert heard == {"f0": [57.0, 107.0]}, "rounds of commands come every 15 s"


def test_a_frame_that_starts_while_others_are_waited_for_wakes_the_loop() -> None:
    place = Workplace(s0=(120.0, 30.0), s1=(2.0, 0.5))
    heard = place.run(12.0, (0.0, slot(0)), (10.0, slot(1)))
    assert heard["f1"] == [10.5, 11.0, 11.5]
    assert place.looks < 30, "nobody looks without a reason"


@pytest.mark.parametrize("begins_at", [number / 7 for number in range(1, 40)])
def test_times_that_are_no_exact_numbers_are_waited_for_as_others_are(begins_at: float) -> None:
    place = Workplace(s0=(2.0, 0.7))
    heard = place.run(begins_at + 16.0, (begins_at, COMMAND), (begins_at, slot(0)), begins_at=begins_at)
    assert (len(heard["f0"]), len(heard["c"])) == (22, 1)
    assert place.looks < 80


def test_a_frame_that_follows_another_is_heard_of_by_its_own_policy() -> None:
    place = Workplace(s0=(120.0, 30.0), s1=(120.0, 2.0))
    place.ends["f0/1"] = 6.0
    place.planners.following = place.planners.frame(1)
    assert place.run(11.0, (0.0, slot(0))) == {"f1": [8.01, 10.01]}


def test_commands_are_told_of_in_rounds_whatever_frames_ask_for() -> None:
    heard = Workplace(s0=(120.0, 1.0)).run(32.0, (0.0, COMMAND), (0.0, slot(0)))
    assert heard["c"] == [15.0, 30.0]
    assert len(heard["f0"]) == 31


def test_frames_that_are_due_one_soon_after_the_other_are_told_of_together() -> None:
    place = Workplace(s0=(120.0, 5.0), s1=(120.0, 5.0), s2=(120.0, 5.0))
    heard = place.run(9.0, (0.0, slot(0)), (0.1, slot(1)), (1.0, slot(2)))
    assert heard == {"f0": [5.0], "f1": [5.0], "f2": [6.0]}


def test_a_frame_of_which_nobody_heard_is_told_of_again_before_its_lease_is_over() -> None:
    place = Workplace(s0=(20.0, 10.0))
    place.planners.is_away = lambda: place.loop.time() < 12.0
    assert place.run(36.0, (0.0, slot(0))) == {"f0": [10.0, 15.0, 25.0, 35.0]}


def test_a_frame_that_cannot_be_told_of_is_stopped_before_its_lease_is_over() -> None:
    place = Workplace(s0=(20.0, 10.0))
    place.planners.is_away = lambda: True
    assert place.run(60.0, (0.0, slot(0))) == {"f0": [10.0, 15.0, 20.0]}
    assert place.slots.busy == 0


def test_news_of_a_frame_is_told_without_waiting_for_its_time() -> None:
    place = Workplace(s0=(240.0, 60.0), s1=(240.0, 60.0))
    tasks = SparkTasks(call_id="c", execution_id="1", step="s", function="f", common={}, shares=())
    place.progress.spark(tasks, SparkProgress(stages_done=0, stages=2, tasks_done=1, tasks=9))
    assert place.run(20.0, (0.0, slot(0)), (0.0, slot(1))) == {"f0": [3.0]}


def test_whoever_is_silent_costs_nobody_else_a_lease() -> None:
    place = Workplace(s0=(40.0, 2.0), s1=(4.0, 1.0))
    place.planners.silent = frozenset({2})
    heard = place.run(35.0, (0.0, COMMAND), (0.0, slot(0, 2)), (0.0, slot(1)))

    assert heard["c"] == [15.0, 30.0]
    assert len(heard["f1"]) == 34
    assert heard["f0"] == [2.0, 12.0, 22.0, 32.0], "one question at a time"


def test_what_nobody_answers_for_is_stopped_before_its_lease_is_over() -> None:
    place = Workplace(s0=(10.0, 5.0))
    place.planners.silent = frozenset({1})
    place.run(30.0, (0.0, slot(0)))

    assert 9.0 <= place.ended["f0/1"] <= 10.0


def test_a_frame_that_is_granted_again_with_little_of_its_lease_is_told_of_at_once() -> None:
    place = Workplace(s0=(12.0, 3.0))
    place.planners.lease_left = 0.9
    assert place.run(8.0, (0.0, slot(0))) == {"f0": [0.01, 3.01, 6.01]}


def test_a_policy_that_wants_no_end_of_heartbeats_gets_four_a_second() -> None:
    heard = Workplace(s0=(20.0, 0.001)).run(10.2, (0.0, slot(0)))
    assert len(heard["f0"]) == 40
