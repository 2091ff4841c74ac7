"""Slots of stages that run on Spark: hints are gathered by stage, and a job holds them until the stage is drained."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from noetl_core.ports.commands import CommandKey
from noetl_core.ports.spark import SparkEnd, SparkSessions, SparkTasks
from noetl_servicekit.logging import get_logger

from noetl_worker.application.frame_work import slot_key
from noetl_worker.application.slot_order import SlotOrder, SlotReport
from noetl_worker.telemetry import WorkerMetrics

logger = get_logger()

GATHER_SECONDS: Final = 0.05
"""Hints of a stage that opens come at once, or nearly so."""
FIRST_SLICE_SECONDS: Final = 2.0
"""Soon enough for hints that came a little later than the others."""
SLICE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 1.0
"""Between two jobs of a stage of which the first could do nothing."""
LATE_SECONDS: Final = 3.0
"""After its time slice, a job that still runs is waited for no longer: it has a frame that lasts, or stands still."""
LOOK_SECONDS: Final = 1.0
JOBS_AT_ONCE: Final = 2
"""Of one stage: one that is late, and one with the slots that it has let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHint:
    """A slot of a stage that could have a frame, and where its frames run."""

    execution_id: int
    stage_id: str
    slot: int
    engine: str = ""
    step: str = ""
    tenant_id: str = ""
    organization_id: str = ""

    @property
    def key(self) -> CommandKey:
        """The slot, as something to claim."""
        return slot_key(self.execution_id, stage_id=self.stage_id, slot=self.slot)


MakeOrder = Callable[[StageHint, str, float], SlotOrder]
"""From a slot of the stage, the name of the owner and the length of the slice."""
RunHere = Callable[[Sequence[StageHint], str], Awaitable[None]]
"""Slots that Spark cannot run, and why."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    slots: set[int]
    late_at: float
    """On the clock of the loop."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Stage:
    first: StageHint
    waiting: set[int] = field(default_factory=set)
    jobs: dict[asyncio.Task[set[int]], _Job] = field(default_factory=dict)
    hinted: set[int] = field(default_factory=set)
    """Slots of jobs that somebody could have all the same, as the planner says."""
    task: asyncio.Task[None] | None = None

    @property
    def running(self) -> set[int]:
        return {slot for job in self.jobs.values() for slot in job.slots}

    def may_begin(self, now: float) -> bool:
        """Whether what waits is for another job: those that run begin no frames any more."""
        return (
            bool(self.waiting)
            and len(self.jobs) < JOBS_AT_ONCE
            and all(job.late_at <= now for job in self.jobs.values())
        )

    def let_go(self, now: float) -> None:
        """Slots that late jobs have, and the log does not know of, are free."""
        for job in self.jobs.values():
            if job.late_at <= now and len(self.jobs) < JOBS_AT_ONCE:
                free = job.slots & self.hinted
                job.slots -= free
                self.waiting |= free
                self.hinted -= free


class SparkStages:
    """At most `capacity` slots at once; whoever holds a slot is decided by its claims, in the log."""

    def __init__(
        self,
        sessions: SparkSessions,
        *,
        function: str,
        order: MakeOrder,
        otherwise: RunHere,
        engines: frozenset[str],
        capacity: int,
        metrics: WorkerMetrics,
    ) -> None:
        self._sessions = sessions
        self._function = function
        self._order = order
        self._otherwise = otherwise
        self._engines = engines
        self._capacity = capacity
        self._metrics = metrics
        self._stages: dict[str, _Stage] = {}
        self._name = uuid.uuid4().hex[:8]
        self._jobs = 0
        self._is_draining = False

    def takes(self, hint: StageHint) -> bool:
        """Whether its frames belong on Spark, as far as this worker is concerned."""
        return hint.engine in self._engines

    @property
    def held(self) -> int:
        """How many slots are here."""
        return sum(len(stage.waiting | stage.running) for stage in self._stages.values())

    def take(self, hints: Sequence[StageHint]) -> frozenset[CommandKey]:
        """Have slots run; returns those for which there is no room."""
        refused: set[CommandKey] = set()
        for hint in hints:
            stage = self._stages.get(hint.stage_id)
            if stage is not None and hint.slot in stage.running:
                stage.hinted.add(hint.slot)
                continue
            if stage is not None and hint.slot in stage.waiting:
                continue
            if self._is_draining or self.held >= self._capacity:
                refused.add(hint.key)
                continue
            if stage is None:
                stage = self._stages[hint.stage_id] = _Stage(first=hint)
                stage.task = asyncio.create_task(self._occupy(stage), name=f"stage-{hint.stage_id}")
            stage.waiting.add(hint.slot)
        self._metrics.spark.slots_held(self.held)
        return frozenset(refused)

    def cancel_execution(self, execution_id: int) -> None:
        """Somebody ended the execution: stop its jobs now."""
        for stage in list(self._stages.values()):
            if stage.first.execution_id == execution_id:
                self._stop(stage)

    def stop_stage(self, stage_id: str) -> None:
        """The step has ended without waiting for its frames."""
        if stage_id in self._stages:
            self._stop(self._stages[stage_id])

    async def drain(self, *, seconds: float) -> None:
        """Begin no other job; what takes longer is cancelled, and its frames are left to others."""
        self._is_draining = True
        tasks = [stage.task for stage in self._stages.values() if stage.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _stop(self, stage: _Stage) -> None:
        if stage.task is not None:
            stage.task.cancel()

    async def _occupy(self, stage: _Stage) -> None:
        """One job after the other, while some of its slots have work; one that is late does not hold up the next."""
        slice_seconds = FIRST_SLICE_SECONDS
        clock = asyncio.get_running_loop().time
        try:
            await asyncio.sleep(GATHER_SECONDS)
            while stage.jobs or (stage.waiting and not self._is_draining):
                if stage.may_begin(clock()) and not self._is_draining:
                    self._begin(stage, slice_seconds)
                    slice_seconds = SLICE_SECONDS
                done, _ = await asyncio.wait(stage.jobs, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    job = stage.jobs.pop(task)
                    stage.hinted -= job.slots
                    stage.waiting |= task.result() & job.slots
                stage.let_go(clock())
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("worker.stage_failed", stage_id=stage.first.stage_id)
        finally:
            for task in stage.jobs:
                task.cancel()
            try:
                await asyncio.gather(*stage.jobs, return_exceptions=True)
            finally:
                self._stages.pop(stage.first.stage_id, None)
                self._metrics.spark.slots_held(self.held)

    def _begin(self, stage: _Stage, slice_seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        job = _Job(slots=stage.waiting, late_at=now + slice_seconds + LATE_SECONDS)
        task = asyncio.create_task(self._run_job(stage.first, frozenset(job.slots), slice_seconds))
        stage.waiting = set()
        stage.jobs[task] = job

    async def _run_job(self, first: StageHint, slots: frozenset[int], slice_seconds: float) -> set[int]:
        """The slots that are to be taken up again."""
        self._jobs += 1
        name = f"{self._name}-{self._jobs}"
        tasks = SparkTasks(
            call_id=f"{first.stage_id}/{name}",
            execution_id=str(first.execution_id),
            step=first.step,
            function=self._function,
            common=replace(self._order(first, name, slice_seconds), slots=len(slots)).to_json(),
            shares=sorted(slots),
        )
        end = await self._sessions.run(tasks)
        reports = [SlotReport.from_json(one) for one in end.data] if isinstance(end.data, list) else []  # type: ignore[arg-type]  # maps
        self._metrics.spark.frames_ran(sum(report.frames for report in reports))
        trouble = _trouble(end, reports)
        if trouble is not None:
            code, message = trouble
            logger.warning("worker.spark_job_failed", stage_id=first.stage_id, code=code, reason=message)
            if _is_hopeless(code):
                await self._otherwise([replace(first, slot=slot) for slot in sorted(slots)], message)
            elif not any(report.frames for report in reports):
                await asyncio.sleep(AGAIN_SECONDS)
        return {slot for report in reports for slot in report.left}


def _trouble(end: SparkEnd, reports: Sequence[SlotReport]) -> tuple[str, str] | None:
    if end.failure is not None:
        return end.failure.code, end.failure.message
    failed = next((report for report in reports if report.error), None)
    return None if failed is None else (failed.code, failed.error)


def _is_hopeless(code: str) -> bool:
    """Whether no other job would do better: there is no session to be had, or tasks cannot even begin."""
    return code == "SPARK_UNAVAILABLE" or code.startswith("PY_")
