"""Frames that hang are not kept alive: whoever holds them is heard of no more, and others may have them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.errors import Unavailable
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import ClaimOutcome, CommandKey, GrantedCommand, Heartbeats, Worker
from noetl_core.ports.frames import FrameBeats, FrameClaim, FrameCommit, FrameKey, GrantedFrame, StageSlot
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.rows import FrameRows
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.heartbeats import tell_of_all
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until
from noetl_worker.application.captured_output import StoreOutput
from noetl_worker.application.command_end import CommandEnd, failed_result
from noetl_worker.application.frame_limits import GRACE_SECONDS, CallLimit, FramesAtWork
from noetl_worker.application.frame_work import WorkOfPlanners, slot_key
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.run_reduce import RunReduce
from noetl_worker.application.slots import Slots
from noetl_worker.bootstrap.slot_process import _Guarded
from noetl_worker.telemetry import WorkerMetrics

WORKER = Worker(worker_id="w")
MAX_SECONDS, CALL_SECONDS = 30.0, 15.0
ENDED = CommandEnd(result=failed_result(Unavailable("ended")))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def granted(slot: int) -> GrantedFrame:
    rows = FrameRows(
        stage_id="1-s",
        loop_id="l",
        index=slot,
        slot=slot,
        start=slot,
        stop=slot + 1,
        total=10,
        bounds=FrameBounds(max_rows=1, max_seconds=MAX_SECONDS, heartbeat_seconds=1.0, lease_seconds=120.0),
        values=(slot,),
    )
    command = GrantedCommand(
        key=CommandKey(execution_id=1, command_id=f"1-s-{slot}/1"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=120,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
        frame=rows,
    )
    return GrantedFrame(key=FrameKey(execution_id=1, frame_id=f"1-s-{slot}", attempt=1), step=command, rows=rows)


class Planners:
    """Grants the frame of whatever slot is asked for, and remembers whom it heard of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        return ()

    async def heartbeat(self, worker: Worker, keys: Sequence[CommandKey], **_: Any) -> Heartbeats:
        return Heartbeats()

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        return tuple(FrameClaim(slot=slot, frame=granted(slot.slot)) for slot in slots)

    async def fail_frame(self, worker: Worker, key: FrameKey, *what: Any, **of: Any) -> FrameCommit:
        return FrameCommit(stream_version=1)

    async def heartbeat_frames(self, worker: Worker, keys: Sequence[FrameKey], **_: Any) -> FrameBeats:
        self.heard += [key.frame_id for key in keys]
        return FrameBeats()


class Tools:
    """Frame 0 calls something that does not end when it is cancelled; frame 1 waits without a limit."""

    def __init__(self, at_work: FramesAtWork) -> None:
        self.at_work = at_work
        self.release = asyncio.Event()
        self.begun = 0
        self.cancelled = 0

    async def __call__(self, command: GrantedCommand) -> CommandEnd:
        assert command.frame is not None
        with self.at_work.run(command):
            if command.frame.slot == 0:
                await self._stubborn()
            else:
                self.begun += 1
                await self.release.wait()
        return ENDED

    async def _stubborn(self) -> None:
        with CallLimit(CALL_SECONDS):
            self.begun += 1
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1


def slots_of(work: WorkOfPlanners, run: Any, clock: Clock) -> Slots:
    return Slots(work, run, worker=WORKER, size=4, metrics=WorkerMetrics(MetricSet()), clock=clock)


async def test_a_frame_past_its_seconds_and_the_limit_of_its_call_is_heard_of_no_more() -> None:
    planners, clock = Planners(), Clock()
    both: Any = planners
    at_work = FramesAtWork(clock=clock)
    tools = Tools(at_work)
    slots = slots_of(WorkOfPlanners(both, both, at_work=at_work), tools, clock)
    await slots.claim([slot_key(1, stage_id="1-s", slot=slot) for slot in (0, 1)])
    await until(lambda: tools.begun == 2)

    heard: list[list[str]] = []
    for clock.now in (MAX_SECONDS - 1.0, MAX_SECONDS, MAX_SECONDS + CALL_SECONDS):
        planners.heard.clear()
        await tell_of_all(slots)
        heard.append(sorted(planners.heard))
    await asyncio.sleep(0)  # it was told to stop, and does not
    tools.release.set()
    await slots.drain(seconds=60)

    assert heard[:2] == [["1-s-0", "1-s-1"]] * 2, "rows may start until the frame's seconds are over"
    assert heard[2] == ["1-s-1"], "a call without a limit may take as long as it does"
    assert tools.cancelled == 1


REDUCING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
- {step: m, loop: {in: [1]}, tool: {kind: noop}, next: {arcs: [{step: s}]}}
- {step: s, reduce: {from: m}, tool: {kind: noop, result: "{{ partitions }}"}}
"""


class Partition:
    """Stands for the pipeline, the names and the rows of a reduce whose call does not end."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.has_begun = False

    async def __call__(self, *_: Any, **of: Any) -> PipelineEnd:
        with CallLimit(CALL_SECONDS):
            self.has_begun = True
            await self.release.wait()
        return PipelineEnd(outcome=Outcome.failed(kind=ErrorKind.UNKNOWN, code="X", message="ended"))

    async def names(self, *_: Any) -> dict[str, object]:
        return {}

    async def entries(self, *_: Any) -> list[Any]:
        return []

    async def rows(self, *_: Any) -> list[Any]:
        return []

    def table(self, *_: Any) -> None:
        return None


async def test_a_reduce_past_its_seconds_and_the_limit_of_its_call_is_heard_of_no_more() -> None:
    clock, partition = Clock(), Partition()
    at_work = FramesAtWork(clock=clock)
    this: Any = partition
    persist = PersistBeforeEmit(InMemoryPayloadStore(), ArrowTables())
    run = RunReduce(
        names=this.names,
        pipeline=this,
        persist=persist,
        partitions=this,
        store_output=StoreOutput(persist),
        store_variables=this.names,
        store_scope=this.names,
        at_work=at_work,
        clock=clock,
    )
    command, (playbook, _) = granted(0).step, parse_playbook(REDUCING)
    place = ResultPlace(tenant_id="t", organization_id="o", execution_id=1, step="s")
    running = asyncio.create_task(run(command, playbook, place))
    await until(lambda: partition.has_begun)

    hung: list[bool] = []
    for clock.now in (MAX_SECONDS, CALL_SECONDS + GRACE_SECONDS, MAX_SECONDS + 1.0):
        hung.append(command.key in at_work.hung())
    partition.release.set()
    await running

    assert hung == [False, False, True]
    assert at_work.hung() == frozenset()


async def test_a_call_that_ends_leaves_its_frame_alive() -> None:
    clock = Clock()
    at_work = FramesAtWork(clock=clock)
    command = granted(0).step
    with at_work.run(command):
        with CallLimit(CALL_SECONDS):
            clock.now = MAX_SECONDS + 1.0
            assert at_work.hung() == frozenset({command.key})
        assert at_work.hung() == frozenset(), "the next call has a limit of its own"
        with CallLimit(CALL_SECONDS):
            assert at_work.hung() == frozenset()
        with pytest.raises(TimeoutError), CallLimit(0.0):
            await asyncio.Event().wait()
        assert at_work.hung() == frozenset()
    with CallLimit(CALL_SECONDS):  # outside of frames nobody keeps count
        clock.now = 1e6
        assert at_work.hung() == frozenset()


async def test_a_slot_whose_loop_hangs_loses_its_lease_and_one_that_turns_again_keeps_it() -> None:
    planners, clock, is_hung = Planners(), Clock(), True
    both: Any = planners
    guarded = _Guarded(both, both, is_hung=lambda: is_hung, at_work=FramesAtWork())

    async def run(command: GrantedCommand) -> CommandEnd:
        await asyncio.Event().wait()
        return ENDED

    slots = slots_of(guarded, run, clock)
    await slots.claim([slot_key(1, stage_id="1-s", slot=0)])
    clock.now = 60.0
    await tell_of_all(slots)
    assert (planners.heard, slots.busy) == ([], 1)

    is_hung = False
    await tell_of_all(slots)
    assert planners.heard == ["1-s-0"]

    is_hung, clock.now = True, 60.0 + 120.0
    await tell_of_all(slots)
    await until(lambda: slots.busy == 0)  # although it was stopped before it had begun
