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
class _Stage:
    first: StageHint
    waiting: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


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
            if stage is not None and hint.slot in stage.running | stage.waiting:
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
        """One job after the other, while some of its slots have work."""
        slice_seconds = FIRST_SLICE_SECONDS
        try:
            await asyncio.sleep(GATHER_SECONDS)
            while stage.waiting and not self._is_draining:
                stage.running, stage.waiting = stage.waiting, set()
                await self._run_job(stage, slice_seconds)
                stage.running = set()
                slice_seconds = SLICE_SECONDS
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("worker.stage_failed", stage_id=stage.first.stage_id)
        finally:
            self._stages.pop(stage.first.stage_id, None)
            self._metrics.spark.slots_held(self.held)

    async def _run_job(self, stage: _Stage, slice_seconds: float) -> None:
        self._jobs += 1
        name = f"{self._name}-{self._jobs}"
        first = stage.first
        tasks = SparkTasks(
            call_id=f"{first.stage_id}/{name}",
            execution_id=str(first.execution_id),
            step=first.step,
            function=self._function,
            common=replace(self._order(first, name, slice_seconds), slots=len(stage.running)).to_json(),
            shares=sorted(stage.running),
        )
        end = await self._sessions.run(tasks)
        reports = [SlotReport.from_json(one) for one in end.data] if isinstance(end.data, list) else []  # type: ignore[arg-type]  # maps
        self._metrics.spark.frames_ran(sum(report.frames for report in reports))
        stage.waiting |= {slot for report in reports for slot in report.left}
        trouble = _trouble(end, reports)
        if trouble is None:
            return
        code, message = trouble
        logger.warning("worker.spark_job_failed", stage_id=first.stage_id, code=code, reason=message)
        if _is_hopeless(code):
            await self._otherwise([replace(first, slot=slot) for slot in sorted(stage.running)], message)
        elif not any(report.frames for report in reports):
            await asyncio.sleep(AGAIN_SECONDS)


def _trouble(end: SparkEnd, reports: Sequence[SlotReport]) -> tuple[str, str] | None:
    if end.failure is not None:
        return end.failure.code, end.failure.message
    failed = next((report for report in reports if report.error), None)
    return None if failed is None else (failed.code, failed.error)


def _is_hopeless(code: str) -> bool:
    """Whether no other job would do better: there is no session to be had, or tasks cannot even begin."""
    return code == "SPARK_UNAVAILABLE" or code.startswith("PY_")
