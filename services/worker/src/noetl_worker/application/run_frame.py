"""Runs one frame in this process: its rows are resolved once, their outcomes stored as one payload, and then told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.errors import NoetlError, NotCanonical, NotFound
from noetl_core.executions.item_keys import item_key
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.playbook.model import LoopMode, Playbook, Step
from noetl_core.ports.commands import GrantedCommand, Variables
from noetl_core.stages.rows import FrameRows

from noetl_worker.application.captured_output import CapturedOutput, StoreOutput
from noetl_worker.application.claim_rows import ClaimRows
from noetl_worker.application.command_end import CommandEnd, failed_result, parent_ref_id
from noetl_worker.application.event_result import EventResult
from noetl_worker.application.failed_rows import places_of, told_failed
from noetl_worker.application.frame_credentials import credentials_of_frame
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.frame_names import FrameNames
from noetl_worker.application.frame_work import FRAME_COUNTS
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.loop_items import LoopItems
from noetl_worker.application.open_frame import open_frame
from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.patience import pauses
from noetl_worker.application.persist_before_emit import (
    PersistBeforeEmit,
    ResultPlace,
    failed_with,
    lost_result,
    nothing_stored,
)
from noetl_worker.application.pipeline import Pipeline, PipelinePark
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.scopes import FIXED_NAMES
from noetl_worker.application.step_names import StepNames
from noetl_worker.application.told_rows import ToldRows

RETRY_SECONDS: Final = pauses()
"""Pauses before a row is tried again for trouble that is not its own; after that it is the row's outcome."""

StoreVariables = Callable[[ResultPlace, Mapping[str, JsonValue]], Awaitable[Variables]]


class RunFrame:
    """Whatever goes wrong with a row is its outcome; a frame fails as a whole only if it is processed as a whole."""

    def __init__(
        self,
        *,
        names: StepNames,
        pipeline: Pipeline,
        persist: PersistBeforeEmit,
        items: LoopItems,
        store_output: StoreOutput,
        store_variables: StoreVariables,
        claim_rows: ClaimRows | None = None,
        at_work: FramesAtWork | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._names = names
        self._pipeline = pipeline
        self._persist = persist
        self._items = items
        self._store_output = store_output
        self._store_variables = store_variables
        self._claim_rows = claim_rows
        self._at_work = at_work or FramesAtWork()
        self._clock = clock
        self._sleep = sleep

    async def __call__(self, command: GrantedCommand, playbook: Playbook, place: ResultPlace) -> CommandEnd:
        """The result that closes the frame; counts of its rows stand in its context, for whoever delivers it."""
        frame, step = command.frame, playbook.steps[command.step]
        if frame is None or step.loop is None:
            raise AssertionError("not a frame")
        with open_frame(), credentials_of_frame(), self._at_work.run(command):
            return await self._ended(command, playbook, place, frame, step)

    async def _ended(
        self, command: GrantedCommand, playbook: Playbook, place: ResultPlace, frame: FrameRows, step: Step
    ) -> CommandEnd:
        began = self._clock()
        try:
            names = await self._names(command, playbook)
            if frame.claims:
                claimed = await self._claimed(command, playbook, frame, names, place)
                if isinstance(claimed, CommandEnd):
                    return claimed
                frame, rows = claimed
                command = replace(command, frame=frame)
            else:
                rows = await self._items.rows(frame)
        except NotFound as exc:
            return CommandEnd(result=failed_result(exc, retryable=True))
        rows = within_bytes(rows, frame.bounds.max_bytes)
        if frame.bounds.process == "frame":
            whole = _whole(step, frame, rows)
            ends = [await self._run(command, playbook, names, whole, key=f"frame/{frame.start}")]
        else:
            ends = await self._run_rows(command, playbook, names, rows, until=began + frame.bounds.max_seconds)
        while True:
            failed = next((end.outcome for end in ends if end.outcome.error), None)
            is_tried_again = _is_tried_again(command, step, frame)
            if failed is not None and (is_tried_again or frame.bounds.process == "frame"):
                result = failed_frame(failed, retryable=True if is_tried_again else None)
                return CommandEnd(result=result, logs=await self._store_output(command, _captured(ends)))
            told = ToldRows.of(frame, ends, rows)
            try:
                return await self._told(command, place, frame, told, ends, began=began)
            except NoetlError as exc:
                again = await self._returned(ends, exc)
                if again is None:  # The tools have run; another attempt has the same keys for its effects.
                    return CommandEnd(result=failed_with(lost_result(exc.message, OutcomeMeta())))
                ends = again

    async def _returned(self, ends: Sequence[PipelineEnd], lost: NoetlError) -> list[PipelineEnd] | None:
        """Rows that cannot be stored go back to the tasks that made them, as their rules say; None if no rule does."""
        returned, is_any = list(ends), False
        for number, end in enumerate(ends):
            if end.outcome.error is not None or end.run is None:
                continue
            again = await self._pipeline.return_to_producer(end, lost_result(lost.message, end.outcome.meta))
            if again is not None:
                returned[number], is_any = _not_parked(again), True
        return returned if is_any else None

    async def _claimed(
        self,
        command: GrantedCommand,
        playbook: Playbook,
        frame: FrameRows,
        names: Mapping[str, object],
        place: ResultPlace,
    ) -> tuple[FrameRows, list[JsonValue]] | CommandEnd:
        """The frame with the rows that it has claimed; or its end, if there were none or nobody could say."""
        loop = playbook.steps[command.step].loop
        if loop is None or loop.cursor is None or self._claim_rows is None:
            raise AssertionError("nothing to claim rows from")
        found = await self._claim_rows(
            command, frame=frame, cursor=loop.cursor, names=names, keychain=playbook.keychain, place=place
        )
        if isinstance(found, Outcome):
            return CommandEnd(result=failed_frame(found))
        if isinstance(found, FrameRows):  # told before, by this attempt: the log has them
            return found, await self._items.rows(found)
        start, rows = found
        if not rows:
            return CommandEnd(result=nothing_stored(_found_nothing(frame)))
        return replace(frame, start=start, stop=start + len(rows), total=start + len(rows), claims=False), rows

    async def _told(
        self,
        command: GrantedCommand,
        place: ResultPlace,
        frame: FrameRows,
        told: ToldRows,
        ends: Sequence[PipelineEnd],
        *,
        began: float,
    ) -> CommandEnd:
        """Bytes first: the outcomes are one payload, whatever the number of rows. Raises what keeps them from that."""
        variables = await self._store_variables(place, told.variables)
        failed = await told_failed(places_of(told.failed_places), place, self._persist)
        counts: JsonObject = {
            "stop": told.stop,
            "success": told.success,
            "failed": told.failed,
            "breaks": told.breaks,
            "first_error": told.first_error,
            "metrics": told.metrics(ends),
        }
        context: JsonObject = {
            "row_count": told.stop - frame.start,
            "duration_ms": round((self._clock() - began) * 1000, 3),
            **failed,
            FRAME_COUNTS: counts,
        }
        parent = parent_ref_id(command)
        result = await self._persist.rows(place, told.bodies, context=context, parent_ref_id=parent)
        return CommandEnd(result=result, variables=variables, logs=await self._store_output(command, _captured(ends)))

    async def _run_rows(
        self,
        command: GrantedCommand,
        playbook: Playbook,
        names: Mapping[str, object],
        rows: Sequence[JsonValue],
        *,
        until: float,
    ) -> list[PipelineEnd]:
        """Rows begin in order, so those that have run when time is up are the first ones; the first always runs."""
        step, frame = playbook.steps[command.step], command.frame
        if step.loop is None or frame is None:
            raise AssertionError("not a frame")
        at_once = min(frame.bounds.row_concurrency, len(rows))
        of_frame = FrameNames.of(frame, rows, iterator=step.loop.iterator)
        is_sequential = step.loop.mode is LoopMode.SEQUENTIAL and at_once == 1
        ends: dict[int, PipelineEnd] = {}
        variables: dict[str, JsonValue] = {}
        numbers = iter(range(len(rows)))

        async def take_turns() -> None:
            for number in numbers:
                seen = _with_variables(names, variables) if is_sequential and variables else names
                end = await self._run_row(command, playbook, seen, _row(step, frame, rows, number, of_frame))
                ends[number] = end
                variables.update(end.variables)
                if self._clock() >= until:
                    return

        async with asyncio.TaskGroup() as turns:
            for _ in range(at_once):
                turns.create_task(take_turns())
        return [ends[number] for number in sorted(ends)]

    async def _run_row(
        self,
        command: GrantedCommand,
        playbook: Playbook,
        names: Mapping[str, object],
        item: Iteration,
    ) -> PipelineEnd:
        """One row, under its own key; items of a fan-out that run together are tried again alone, each by itself."""
        loop = playbook.steps[command.step].loop
        if loop is None:
            raise AssertionError("not a frame")
        key = str(item.index)
        if loop.key is not None:
            try:
                key = item_key(loop, {**names, **item.iterators(), **item.names()}, item.index, now=None)
            except TemplateFailed as exc:
                failed = Outcome.failed(kind=ErrorKind.TRANSFORM, code="TEMPLATE_ERROR", message=exc.message)
                return PipelineEnd(outcome=failed)
        tries = loop.max_item_retries if loop.mode is LoopMode.FANOUT and loop.frame is not None else 0
        end = await self._run(command, playbook, names, item, key=key)
        while end.outcome.error is not None and tries > 0:
            tries -= 1
            end = await self._run(command, playbook, names, replace(item, scope={}), key=key)
        return end

    async def _run(
        self,
        command: GrantedCommand,
        playbook: Playbook,
        names: Mapping[str, object],
        iteration: Iteration,
        *,
        key: str,
    ) -> PipelineEnd:
        """One run of the step's tasks; its key for effects is the same in every attempt at the frame."""
        own = {**names, "idempotency_key": f"{command.idempotency_key}/{key}"}
        tries = iter(RETRY_SECONDS)
        while True:
            try:
                end = await self._pipeline(
                    command,
                    playbook.steps[command.step],
                    own,
                    workbook=playbook.workbook,
                    keychain=playbook.keychain,
                    iteration=iteration,
                )
            except NoetlError as exc:
                pause = next(tries, None)
                if exc.retryable and pause is not None:
                    await self._sleep(pause)
                    continue
                failed = Outcome.failed(
                    kind=ErrorKind.UNKNOWN, code=exc.code, message=exc.message, retryable=exc.retryable
                )
                return PipelineEnd(outcome=failed)
            return _not_parked(end)


def within_bytes(rows: Sequence[JsonValue], max_bytes: int) -> list[JsonValue]:
    """As many rows as fit, and one in any case; the rest goes to a follow-up frame."""
    with suppress(NotCanonical):  # a row may be as deep as values may be, and a list of it is deeper
        if len(encode(list(rows))) <= max_bytes:  # which is more than all of them
            return list(rows)
    taken: list[JsonValue] = []
    size = 0
    for row in rows:
        size += len(encode(row))
        if taken and size > max_bytes:
            break
        taken.append(row)
    return taken


def _row(step: Step, frame: FrameRows, rows: Sequence[JsonValue], number: int, of_frame: FrameNames) -> Iteration:
    return Iteration(
        iterator=step.loop.iterator if step.loop else "item",
        value=rows[number],
        index=frame.start + number,
        total=frame.total,
        frame=of_frame.of_row(number),
    )


def _whole(step: Step, frame: FrameRows, rows: Sequence[JsonValue]) -> Iteration:
    iterator = step.loop.iterator if step.loop else "item"
    return Iteration(
        iterator=iterator,
        value=list(rows),
        index=frame.start,
        total=frame.total,
        frame=FrameNames.of(frame, rows, iterator=iterator),
    )


def _with_variables(names: Mapping[str, object], variables: Mapping[str, JsonValue]) -> dict[str, object]:
    """§7.3: rows of a sequential loop see what earlier ones have set."""
    ctx = names.get("ctx")
    seen = {**(ctx if isinstance(ctx, Mapping) else {}), **variables}
    steps = names.get("steps")
    own = {name: value for name, value in names.items() if name in FIXED_NAMES}
    return {**names, **variables, **(steps if isinstance(steps, Mapping) else {}), **own, "ctx": seen, "workload": seen}


def _captured(ends: Sequence[PipelineEnd]) -> CapturedOutput:
    captured = CapturedOutput()
    for end in ends:
        for output in (*end.captured.first, *end.captured.last):
            captured.keep(output)
        captured.left_out += end.captured.left_out
    return captured


def _not_parked(end: PipelineEnd | PipelinePark) -> PipelineEnd:
    """What waits is refused at registration, but for what a template names."""
    if isinstance(end, PipelineEnd):
        return end
    message = "a playbook that is waited for cannot run in frames"
    return PipelineEnd(outcome=Outcome.failed(kind=ErrorKind.UNKNOWN, code="WAIT_IN_FRAME", message=message))


def _found_nothing(frame: FrameRows) -> JsonObject:
    """What is told of a frame whose claim gave no rows: its slot looks no more."""
    counts: JsonObject = {"stop": frame.start, "success": 0, "failed": 0, "breaks": 0, "first_error": None}
    return {"row_count": 0, FRAME_COUNTS: counts}


def _is_tried_again(command: GrantedCommand, step: Step, frame: FrameRows) -> bool:
    """§7.6: an item of a fan-out that failed is tried again alone, whatever its error."""
    is_alone = step.loop is not None and step.loop.tells_shards
    return is_alone and command.attempt < frame.bounds.max_attempts


def failed_frame(outcome: Outcome, *, retryable: bool | None = None) -> EventResult:
    """The failure of a frame that was processed as a whole; what it kept besides its error is not stored."""
    return failed_with(outcome, retryable=retryable)
