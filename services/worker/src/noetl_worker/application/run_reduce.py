"""Runs one frame of a reduce stage: its tasks run once, over the rows of a partition, and give its output."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import NoetlError
from noetl_core.playbook.call_facts import fact_paths
from noetl_core.playbook.model import Playbook, Step, ToolKind
from noetl_core.playbook.outputs import kept_output
from noetl_core.playbook.selection import control_paths
from noetl_core.ports.commands import GrantedCommand
from noetl_core.stages.rows import FrameRows

from noetl_worker.application.captured_output import StoreOutput
from noetl_worker.application.command_end import CommandEnd, failed_result, parent_ref_id
from noetl_worker.application.event_result import EventResult
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.frame_names import frame_names
from noetl_worker.application.frame_work import FRAME_COUNTS
from noetl_worker.application.partitions import PARTITION_TABLE, ReadPartitions
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.pipeline import Pipeline, PipelinePark
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.rows_by_reference import texts_in
from noetl_worker.application.run_frame import StoreVariables, failed_frame
from noetl_worker.application.step_names import StepNames

StoreScope = Callable[[ResultPlace, Step, Mapping[str, JsonValue]], Awaitable[JsonObject]]


class RunReduce:
    """What goes wrong fails the frame, which is tried again if that may help; one that hangs loses its lease."""

    def __init__(
        self,
        *,
        names: StepNames,
        pipeline: Pipeline,
        persist: PersistBeforeEmit,
        partitions: ReadPartitions,
        store_output: StoreOutput,
        store_variables: StoreVariables,
        store_scope: StoreScope,
        at_work: FramesAtWork | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._pipeline = pipeline
        self._persist = persist
        self._partitions = partitions
        self._store_output = store_output
        self._store_variables = store_variables
        self._store_scope = store_scope
        self._at_work = at_work or FramesAtWork()
        self._clock = clock

    async def __call__(self, command: GrantedCommand, playbook: Playbook, place: ResultPlace) -> CommandEnd:
        """The result that closes the frame."""
        frame, step = command.frame, playbook.steps[command.step]
        if frame is None or step.reduce is None:
            raise AssertionError("not a frame of a reduce")
        with self._at_work.run(command):
            return await self._ended(command, playbook, place, frame, step)

    async def _ended(
        self, command: GrantedCommand, playbook: Playbook, place: ResultPlace, frame: FrameRows, step: Step
    ) -> CommandEnd:
        began = self._clock()
        try:
            names = {**await self._names(command, playbook), **await self._read(command, frame, step)}
            end = await self._pipeline(
                command, step, names, workbook=playbook.workbook, keychain=playbook.keychain, iteration=None
            )
        except NoetlError as exc:
            return CommandEnd(result=failed_result(exc, retryable=True))
        if isinstance(end, PipelinePark):
            raise AssertionError("refused at registration")
        logs = await self._store_output(command, end.captured)
        if end.outcome.error is not None:
            return CommandEnd(result=failed_frame(end.outcome), logs=logs)
        try:
            variables = await self._store_variables(place, end.variables)
            result = await self._stored(command, playbook, place, frame, end)
        except NoetlError as exc:
            return CommandEnd(result=failed_result(exc, retryable=True), logs=logs)
        if result.status == "error":
            return CommandEnd(result=result, logs=logs)
        duration = round((self._clock() - began) * 1000, 3)
        told = result.telling({"duration_ms": duration, FRAME_COUNTS: _counts(frame, end)})
        return CommandEnd(result=told, variables=variables, logs=logs)

    async def _read(self, command: GrantedCommand, frame: FrameRows, step: Step) -> dict[str, object]:
        """§7.7: a spark task reads its partition as a view; others, and templates, have its rows as a list."""
        if step.reduce is None:
            raise AssertionError("not a reduce")
        entries = await self._partitions.entries(command, frame)
        rows: list[JsonValue] = []
        if _reads_rows(step):
            rows = await self._partitions.rows(command, entries, frame, step.reduce)
        key = command.idempotency_key
        return {
            **frame_names(frame, rows),
            "partitions": rows,
            PARTITION_TABLE: self._partitions.table(entries, frame, step.reduce),
            "idempotency_key": key if frame.total == 1 else f"{key}/{frame.start}",
        }

    async def _stored(
        self, command: GrantedCommand, playbook: Playbook, place: ResultPlace, frame: FrameRows, end: PipelineEnd
    ) -> EventResult:
        """Bytes first. The output of the only partition is the step's own result; others are put together later."""
        is_whole = frame.total == 1
        stored = await self._persist(
            place,
            end.outcome,
            control_paths=control_paths(playbook, command.step) if is_whole else (),
            fact_paths=fact_paths(playbook, command.step) if is_whole else (),
            parent_ref_id=parent_ref_id(command),
            kept=kept_output(playbook, command.step),
        )
        step = playbook.steps[command.step]
        scope = await self._store_scope(place, step, end.step_scope) if is_whole else {}
        return stored.telling(scope)


def _counts(frame: FrameRows, end: PipelineEnd) -> JsonObject:
    return {
        "stop": frame.start + 1,
        "success": 1,
        "failed": 0,
        "breaks": 1 if end.broke else 0,
        "first_error": None,
        "metrics": {
            "rows": {"ok": 0 if end.broke else 1, "break": 1 if end.broke else 0, "error": 0},
            "tasks": end.run.times.told() if end.run is not None else {},
        },
    }


def _reads_rows(step: Step) -> bool:
    """Whether anything but Spark reads the rows; what a spark task is given by name it is given as a table anyway."""
    if any(task.tool.kind != ToolKind.SPARK for task in step.tasks):
        return True
    inputs = [step.input, *(task.tool.input for task in step.tasks)]
    return any("partitions" in text for text in texts_in(inputs))
