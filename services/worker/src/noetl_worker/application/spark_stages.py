"""Slots of stages that run on Spark: hints are gathered by stage, and a job holds them until the stage is drained."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from noetl_core.errors import NoetlError
from noetl_core.ports.commands import CommandKey
from noetl_core.ports.spark import SparkEnd, SparkSessions, SparkTasks
from noetl_servicekit.logging import get_logger

from noetl_worker.application.slot_order import SlotOrder, SlotReport
from noetl_worker.application.stage_jobs import StageHint, StageJob, StageSlots
from noetl_worker.telemetry import WorkerMetrics

logger = get_logger()

GATHER_SECONDS: Final = 0.05
"""Hints of a stage that opens come at once, or nearly so."""
FIRST_SLICE_SECONDS: Final = 2.0
"""Soon enough for hints that came a little later than the others."""
SLICE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 1.0
"""Between two jobs of a stage of which the first could do nothing."""
LOOK_SECONDS: Final = 1.0
LOG_SECONDS: Final = 5.0
"""How often the log is asked who has the slots of a stage with a late job."""
ANSWER_SECONDS: Final = 2.0
"""For that answer: a planner that is silent must not hold up the stage."""

MakeOrder = Callable[[StageHint, str, float], SlotOrder]
"""From a slot of the stage, the name of the owner and the length of the slice."""
RunHere = Callable[[Sequence[StageHint], str], Awaitable[None]]
"""Slots that Spark cannot run, and why."""
Holders = Callable[[StageHint], Awaitable[Mapping[int, str]]]
"""Of the stage of a hint: who has a frame at which slot, as the log says; raises what kept it from being known."""


class SparkStages:
    """At most `capacity` slots at once; whoever holds a slot is decided by its claims, in the log."""

    def __init__(
        self,
        sessions: SparkSessions,
        *,
        function: str,
        order: MakeOrder,
        otherwise: RunHere,
        holders: Holders,
        engines: frozenset[str],
        capacity: int,
        metrics: WorkerMetrics,
    ) -> None:
        self._sessions = sessions
        self._function = function
        self._order = order
        self._otherwise = otherwise
        self._holders = holders
        self._engines = engines
        self._capacity = capacity
        self._metrics = metrics
        self._stages: dict[str, StageSlots] = {}
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
                stage = self._stages[hint.stage_id] = StageSlots(first=hint)
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

    def _stop(self, stage: StageSlots) -> None:
        if stage.task is not None:
            stage.task.cancel()

    async def _occupy(self, stage: StageSlots) -> None:
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
                    stage.end(task)
                stage.let_go(clock())
                await self._end_useless(stage)
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

    async def _end_useless(self, stage: StageSlots) -> None:
        """Give up tasks of late jobs that hold no frame any more, and have not ended all the same."""
        clock = asyncio.get_running_loop().time
        late = {task: job for task, job in stage.jobs.items() if job.is_late(clock())}
        if not late or clock() < stage.looks_at:
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                holders = await self._holders(stage.first)
        except (NoetlError, TimeoutError) as exc:
            logger.debug("worker.holders_unknown", stage_id=stage.first.stage_id, reason=str(exc))
            return
        finally:
            stage.looks_at = clock() + LOG_SECONDS
        for task, job in late.items():
            job.heed(holders, clock())
            left = job.left(clock())
            if left and not task.done():
                logger.warning("worker.slots_left", stage_id=stage.first.stage_id, slots=len(left))
                if left == job.given:
                    task.cancel()  # a session that does not end it either is ended
                else:
                    self._sessions.release(job.call_id, sorted(left))

    def _begin(self, stage: StageSlots, slice_seconds: float) -> None:
        self._jobs += 1
        first, slots = stage.first, frozenset(stage.waiting)
        order = replace(self._order(first, f"{self._name}-{self._jobs}", slice_seconds), slots=len(slots))
        job = StageJob(
            call_id=f"{first.stage_id}/{self._name}-{self._jobs}",
            owner=order.owner,
            given=slots,
            slots=stage.waiting,
            slice_seconds=slice_seconds,
        )
        stage.waiting = set()
        stage.jobs[asyncio.create_task(self._run_job(first, job, order))] = job

    async def _run_job(self, first: StageHint, job: StageJob, order: SlotOrder) -> set[int]:
        """The slots that are to be taken up again."""
        tasks = SparkTasks(
            call_id=job.call_id,
            execution_id=str(first.execution_id),
            step=first.step,
            function=self._function,
            common=order.to_json(),
            shares=sorted(job.given),
        )
        clock = asyncio.get_running_loop().time
        end = await self._sessions.run(tasks, began=lambda: job.begin(clock()))
        job.end()
        reports = [SlotReport.from_json(one) for one in end.data] if isinstance(end.data, list) else []  # type: ignore[arg-type]  # maps
        self._metrics.spark.frames_ran(sum(report.frames for report in reports))
        trouble = _trouble(end, reports)
        if trouble is not None:
            code, message = trouble
            logger.warning("worker.spark_job_failed", stage_id=first.stage_id, code=code, reason=message)
            if _is_hopeless(code):
                await self._otherwise([replace(first, slot=slot) for slot in sorted(job.given)], message)
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
