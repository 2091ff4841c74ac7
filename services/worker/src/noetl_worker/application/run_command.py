"""Runs one command: its tasks, with what their templates speak of; results and variables are stored before told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.children.state import ParkedCall
from noetl_core.errors import NoetlError, NotFound
from noetl_core.executions.reducing import REDUCE
from noetl_core.executions.step_scope import SCOPE, scope_names_read, scope_told
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.call_facts import fact_paths
from noetl_core.playbook.model import Playbook, Step
from noetl_core.playbook.outputs import kept_output
from noetl_core.playbook.selection import control_paths
from noetl_core.ports.commands import GrantedCommand, Variables
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, PayloadStore
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.loop_results import LoopResults
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks

from noetl_worker.application.captured_output import StoreOutput
from noetl_worker.application.claim_rows import ClaimRows
from noetl_worker.application.command_end import CommandEnd, CommandPark, failed_result, parent_ref_id
from noetl_worker.application.credential_names import is_credential_name
from noetl_worker.application.evaluate_control import EvaluateControl
from noetl_worker.application.event_result import EventResult
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.loop_items import LoopItems
from noetl_worker.application.outcome import ErrorKind, Outcome, gone_result
from noetl_worker.application.partitions import ReadPartitions
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace, lost_result
from noetl_worker.application.pipeline import Pipeline, PipelinePark
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.run_frame import RunFrame
from noetl_worker.application.run_reduce import RunReduce
from noetl_worker.application.step_names import StepNames

MAX_VALUE_BYTES = 1024
"""A variable above this travels by reference, so that events stay small."""


class RunCommand:
    """Whatever goes wrong with the user's part is an outcome; only trouble of our own is raised, and tried again."""

    def __init__(
        self,
        *,
        playbooks: PinnedPlaybooks,
        names: StepNames,
        pipeline: Pipeline,
        persist: PersistBeforeEmit,
        payloads: PayloadStore,
        rows: LoadRows,
        loops: LoopResults | None = None,
        frame_pipeline: Pipeline | None = None,
        claim_rows: ClaimRows | None = None,
        at_work: FramesAtWork | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._playbooks = playbooks
        self._names = names
        self._pipeline = pipeline
        self._persist = persist
        self._payloads = payloads
        self._store_output = StoreOutput(persist)
        self._evaluate_control = EvaluateControl(persist, rows, loops)
        self._items = LoopItems(rows.values)
        self._run_frame = RunFrame(
            names=names,
            pipeline=frame_pipeline or pipeline,
            persist=persist,
            items=self._items,
            store_output=self._store_output,
            store_variables=self._variables,
            claim_rows=claim_rows,
            at_work=at_work,
            clock=clock,
        )
        self._run_reduce = RunReduce(
            names=names,
            pipeline=frame_pipeline or pipeline,
            persist=persist,
            partitions=ReadPartitions(rows, loops),
            store_output=self._store_output,
            store_variables=self._variables,
            store_scope=self._scope,
            at_work=at_work,
            clock=clock,
        )

    async def __call__(self, command: GrantedCommand) -> CommandEnd | CommandPark:
        """The `result` of the event that closes the command and the variables that it has set, or what it waits for."""
        place = ResultPlace(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
        )
        playbook = await self._playbooks.get(
            tenant_id=command.tenant_id, organization_id=command.organization_id, catalog_id=command.catalog_id
        )
        if command.evaluation is not None:
            return CommandEnd(result=await self._evaluate_control(command, playbook))
        if command.frame is not None:
            run = self._run_reduce if command.frame.kind == REDUCE else self._run_frame
            return await run(command, playbook, place)
        end = await self._run(command, playbook)
        while True:
            if isinstance(end, PipelinePark):
                return await self._parked(place, end)
            told, lost = await self._told(command, playbook, place, end)
            again = None if lost is None else await self._pipeline.return_to_producer(end, lost)
            if again is None:
                return replace(told, logs=await self._store_output(command, end.captured))
            end = again

    async def _told(
        self, command: GrantedCommand, playbook: Playbook, place: ResultPlace, end: PipelineEnd
    ) -> tuple[CommandEnd, Outcome | None]:
        """What the planner is told; and what came instead, if the outcome of the tasks could not be stored."""
        lost: Outcome | None = None
        try:
            variables = await self._variables(place, end.variables)
            scope = {} if command.item else await self._scope(place, playbook.steps[command.step], end.step_scope)
        except NoetlError as exc:  # From here on the tools have run: nothing may raise, or they would run again.
            lost = lost_result(f"a variable: {exc.message}", end.outcome.meta)
            end, variables, scope = PipelineEnd(outcome=lost), Variables(), {}
        stored = await self._persist(
            place,
            end.outcome,
            # What routing reads of a loop is its count of items, not what one of them gave.
            control_paths=() if command.item else control_paths(playbook, command.step),
            fact_paths=() if command.item else fact_paths(playbook, command.step),
            parent_ref_id=parent_ref_id(command),
            kept=kept_output(playbook, command.step),
        )
        result = stored.telling(scope)
        if stored.reference is None and end.outcome.error is None:
            lost = _result_not_stored(stored, end.outcome)
        return CommandEnd(result=result.broken_off() if end.broke else result, variables=variables), lost

    async def _parked(self, place: ResultPlace, park: PipelinePark) -> CommandEnd | CommandPark:
        """Bytes first: nobody is told that a command waits whose pipeline could not go on."""
        waiting = park.waiting
        try:
            pipeline = await self._persist.put(place, park.stand)
        except NoetlError as exc:
            return CommandEnd(result=failed_result(exc))
        call = ParkedCall(call_id=waiting.call_id, child_execution_id=waiting.child_execution_id, pipeline=pipeline)
        return CommandPark(call=call, timeout_seconds=waiting.timeout_seconds)

    async def _run(self, command: GrantedCommand, playbook: Playbook) -> PipelineEnd | PipelinePark:
        """Run the tasks; while what they read is out of reach, the rules of the first one say how often it is tried."""
        step = playbook.steps[command.step]
        for attempt in itertools.count(1):
            end = await self._run_once(command, playbook)
            if not isinstance(end, Outcome):
                return end
            gone = replace(end, meta=replace(end.meta, attempt=attempt))
            if not await self._pipeline.is_tried_again(command, step, gone, workbook=playbook.workbook):
                return PipelineEnd(outcome=gone)
        raise AssertionError("unreachable")

    async def _run_once(self, command: GrantedCommand, playbook: Playbook) -> PipelineEnd | PipelinePark | Outcome:
        step = playbook.steps[command.step]
        try:
            stand = await self._payloads.get(command.parked.pipeline) if command.parked else None
            names = await self._names(command, playbook)
            iteration = await self._iteration(command, step)
        except NotFound as exc:
            return gone_result(exc)
        return await self._pipeline(
            command,
            step,
            names,
            workbook=playbook.workbook,
            keychain=playbook.keychain,
            stand=stand,
            iteration=iteration,
        )

    async def _iteration(self, command: GrantedCommand, step: Step) -> Iteration | None:
        item = command.item
        if item is None or step.loop is None:
            return None
        value = await self._items.value(item)
        return Iteration(iterator=step.loop.iterator, value=value, index=item.index, total=item.total)

    async def _scope(self, place: ResultPlace, step: Step, values: Mapping[str, JsonValue]) -> JsonObject:
        """What `set` and arcs of the step read of what its tasks have set for them."""
        read = {name: values[name] for name in scope_names_read(step, values)}
        if not read:
            return {}
        return {SCOPE: scope_told(await self._variables(place, read, hide_credentials=True))}

    async def _variables(
        self, place: ResultPlace, values: Mapping[str, JsonValue], *, hide_credentials: bool = False
    ) -> Variables:
        small: dict[str, JsonValue] = {}
        refs: dict[str, PayloadRef] = {}
        for name, value in values.items():
            body = encode(value)
            if len(body) <= MAX_VALUE_BYTES and not (hide_credentials and is_credential_name(name)):
                small[name] = value
            else:
                refs[name] = await self._persist.put(place, body)
        return Variables(values=small, refs=refs)


def _result_not_stored(stored: EventResult, outcome: Outcome) -> Outcome:
    error = stored.context.get("error")
    told = error if isinstance(error, dict) else {}
    return Outcome.failed(
        kind=ErrorKind.STORAGE_ACCESS,
        code=REFERENCE_NOT_AVAILABLE,
        message=str(told.get("message", "")),
        retryable=True,
        meta=outcome.meta,
    )
