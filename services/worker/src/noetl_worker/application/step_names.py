"""The names that a step's templates see: variables, and the results of earlier steps that they speak of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.executions.amending import with_failure
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.large_results import LargeResult, LargeView, NotLoaded
from noetl_core.playbook.model import Condition, KeychainEntry, Playbook, Step, Task, Tool, ToolKind, WorkbookTask
from noetl_core.playbook.outputs import Kept, kept_output, seen
from noetl_core.playbook.partial_rows import PartialRows
from noetl_core.playbook.references import Reference, handed_on, referenced_paths
from noetl_core.playbook.slices import Cut, cuts_of
from noetl_core.playbook.views import CallView, DataView, StepView
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.event_log import Scope
from noetl_core.streams.state import Chunk
from noetl_servicekit.chunk_rows import LoadRows, is_streamed
from noetl_servicekit.loop_results import LoopResults, is_loop_reference, list_name, loop_counts

from noetl_worker.application.result_refs import result_ref, view_ref
from noetl_worker.application.row_reads import Read, batches_read
from noetl_worker.application.rows_by_reference import BY_REFERENCE, marked_rows, only_for_spark, texts_in
from noetl_worker.application.streamed_rows import StreamsOfResult
from noetl_worker.application.unread_texts import has_unread_texts


class StepNames:
    """Loads what is referred to, and nothing else: other results, and large ones of which little is read, stay."""

    def __init__(self, rows: LoadRows, loops: LoopResults | None = None) -> None:
        self._values = rows.values
        self._parts = rows.parts
        self._loops = loops
        self._rows = rows

    async def __call__(self, command: GrantedCommand, playbook: Playbook) -> dict[str, object]:
        """Names for one call; raises `NotFound` (REFERENCE_NOT_AVAILABLE) when a referenced result is gone."""
        wanted = _wanted_steps(command, playbook)
        loading = [self._result(command, name, reads, kept_output(playbook, name)) for name, reads in wanted.items()]
        if loading:
            variables, values = await asyncio.gather(self._variables(command), asyncio.gather(*loading))
        else:  # nothing to be waited for at once, so no task of its own either
            variables, values = await self._variables(command), []
        results = {name: with_failure(value, command.results[name]) for name, value in zip(wanted, values, strict=True)}
        views = {name: StepView(value) for name, value in results.items()}
        execution_id = str(command.key.execution_id)
        cause = results.get(command.cause_step)
        chunk = await self._chunk_names(command.chunk) if command.chunk is not None else {}
        return {
            "result": chunk.pop("result", DataView(cause) if cause is not None else None),
            **variables,
            **views,
            "steps": views,
            "ctx": variables,
            "workload": variables,
            "execution_id": execution_id,
            "catalog_id": command.catalog_id,
            "job": {"uuid": execution_id, "id": execution_id, "execution_id": execution_id},
            "idempotency_key": command.idempotency_key,
            "_attempt": command.attempt,
            **chunk,
        }

    async def _chunk_names(self, chunk: Chunk) -> dict[str, object]:
        """§5.5: what a step that takes a chunk sees of it."""
        rows = await self._rows.rows(PayloadRef.from_json(chunk.reference))
        data: JsonObject = {**chunk.scalars, "rows": rows}
        return {
            "result": DataView(data),
            "output": CallView(envelope={"status": "ok", "data": data}, result=data),
            "event": {"name": "call.partial", "step": chunk.step, "payload": data},
        }

    async def _variables(self, command: GrantedCommand) -> JsonObject:
        """The workload, and over it what was set since the start."""
        workload: JsonValue = {}
        if command.workload is not None:
            workload = await self._values.get(command.workload)
        stored = command.variables.refs
        values = await asyncio.gather(*(self._values.get(ref) for ref in stored.values()))
        return {
            **(workload if isinstance(workload, dict) else {}),
            **command.variables.values,
            **dict(zip(stored, values, strict=True)),
        }

    async def _result(self, command: GrantedCommand, step: str, reads: Reads, kept: Kept) -> object:
        result = command.results[step]
        reference = result.get("reference")
        if not reference:  # Nobody could store it: a failure that the planner found has only its error.
            error = (result.get("context") or {}).get("error")
            return {"status": "error", "error": error} if error else None
        if is_loop_reference(reference):
            if (result.get("context") or {}).get("reduce"):
                return await self._reduced(command, result, reads)
            return await self._loop_result(command, result, reads)
        marked = marked_rows(reference, kept) if _are_by_reference(reads) else None
        if marked is not None:
            return marked
        beside = view_ref(reference)
        if beside is None:
            return seen(await self._data(result_ref(reference), reads, kept), kept)
        large = LargeView.from_json(await self._values.get(beside))
        without_data = seen(LargeResult(large, NotLoaded()), kept)
        more = {read for read in reads if not read.is_in(without_data)}
        if not more:
            return without_data
        data = await self._some_rows(result_ref(reference), large, more, kept)
        return seen(
            LargeResult(large, await self._data(result_ref(reference), reads, kept) if data is None else data), kept
        )

    async def _some_rows(self, ref: PayloadRef, large: LargeView, reads: Reads, kept: Kept) -> object:
        """Of a table the rows that are read, if they are few; else nothing, and it is loaded as any other result."""
        if large.table is None:
            return None
        batches = batches_read(reads, large, large.table, lambda result: seen(result, kept))
        if batches is None or not self._parts.is_worth_it(ref, large.table, batches):
            return None
        some = await self._parts.get(ref, large.table, batches)
        return some.around.whole(PartialRows(large.table.row_count, some.segments))

    async def _data(self, ref: PayloadRef, reads: Reads, kept: Kept) -> object:
        """The stored result; of rows that went out in chunks it has those that somebody reads, or may."""
        value = await self._values.get(ref)
        if not is_streamed(value):
            return value
        if not reads:
            return await self._rows(value, tenant_id=ref.tenant_id, organization_id=ref.organization_id)
        streams = StreamsOfResult(value, tenant_id=ref.tenant_id, organization_id=ref.organization_id)
        streams.note({read for read in reads if read.root != BY_REFERENCE}, kept)
        if any(read.root == BY_REFERENCE for read in reads):
            streams.read_whole_what_is_read()
        return await streams.load(self._rows.rows)

    async def _reduced(self, command: GrantedCommand, result: Mapping[str, Any], reads: Reads) -> object:
        """What several partitions gave, as one; rows in chunks are loaded unless only executors read them."""
        if self._loops is None:
            return None
        scope = Scope(tenant_id=command.tenant_id, organization_id=command.organization_id)
        whole: JsonValue = await self._loops(scope, command.key.execution_id, result)
        if not is_streamed(whole) or _are_by_reference(reads):
            return whole
        return await self._rows(whole, tenant_id=scope.tenant_id, organization_id=scope.organization_id)

    async def _loop_result(self, command: GrantedCommand, result: Mapping[str, Any], reads: Reads) -> object:
        """What a loop gave; where only its counts are read, its items stay where they are."""
        counts = {**loop_counts(result), list_name(result): NotLoaded()}
        if self._loops is None or (reads and all(read.is_in(counts) for read in reads)):
            return counts
        scope = Scope(tenant_id=command.tenant_id, organization_id=command.organization_id)
        whole: JsonValue = await self._loops(scope, command.key.execution_id, result)
        if not is_streamed(whole):
            return whole
        return await self._rows(whole, tenant_id=scope.tenant_id, organization_id=scope.organization_id)


def _are_by_reference(reads: Reads) -> bool:
    return bool(reads) and all(read.root == BY_REFERENCE for read in reads)


Reads = set[Read]
"""How templates read a result."""


def _wanted_steps(command: GrantedCommand, playbook: Playbook) -> Mapping[str, Reads]:
    """Steps that the templates name, with what they read of each; all steps where names cannot be told in advance."""
    reads: dict[str, Reads] = {name: set() for name in command.results}
    step = playbook.steps[command.step]
    may_read_all = any(has_unread_texts(tool.config) for tool in _tools(step, playbook.workbook))
    named: set[str] = set(reads) if may_read_all else set()
    gone_through = {*texts_in([task.loop.items for task in step.tasks if task.loop])}
    for_spark = only_for_spark(step)
    for text in (*gone_through, *texts_in([*_templates(step, playbook.workbook), *_keychain(playbook.keychain)])):
        if text not in for_spark and ("context" in text or "main" in text):  # user code may ask for anything by name
            named.update(reads)
            may_read_all = True
        whole, cuts = None if text in gone_through else handed_on(text), cuts_of(text)
        for path in referenced_paths(text):
            is_handed_on = path == whole
            if path == ("steps",):
                named.update(reads)
                for of_step in reads.values():
                    of_step.add(Read(root="steps", path=(), is_handed_on=is_handed_on))
            for name, read in _read_of(path, command.cause_step, is_handed_on, cuts.get(path)):
                if name in reads:
                    named.add(name)
                    is_for_spark = text in for_spark and read.root != "result"
                    reads[name].add(replace(read, root=BY_REFERENCE) if is_for_spark else read)
    if may_read_all:  # what is read of a result besides says nothing about what else may be
        return {name: one if _are_by_reference(one) else set() for name, one in reads.items()}
    return {name: reads[name] for name in command.results if name in named}


def _read_of(
    path: Reference, cause_step: str, is_handed_on: bool, cuts: frozenset[Cut] | None
) -> Iterator[tuple[str, Read]]:
    if path[0] == "steps" and len(path) > 1:
        yield path[1], Read(root="steps", path=path[2:], is_handed_on=is_handed_on, cuts=cuts)
    elif path[0] == "result":
        yield cause_step, Read(root="result", path=path[1:], is_handed_on=is_handed_on, cuts=cuts)
    yield path[0], Read(root="steps", path=path[1:], is_handed_on=is_handed_on, cuts=cuts)


def _keychain(keychain: Mapping[str, KeychainEntry]) -> Iterator[object]:
    for entry in keychain.values():
        yield entry.config


def texts_of_task(task: Task, step: Step, workbook: Mapping[str, WorkbookTask]) -> list[str]:
    """Every text that is rendered for one task."""
    alone = replace(step, tasks=(task,))
    return list(texts_in([*_templates(alone, workbook)]))


def _templates(step: Step, workbook: Mapping[str, WorkbookTask]) -> Iterator[object]:
    """Everything that is rendered on the worker while the step runs."""
    yield step.input
    yield from (task.loop.max_in_flight for task in step.tasks if task.loop)
    for tool in _tools(step, workbook):
        yield from (tool.input, tool.config, tool.auth, tool.timeout_template)
        if tool.paginate is not None:
            yield from (tool.paginate.start, tool.paginate.size, tool.paginate.max_pages)
            yield _as_template(tool.paginate.stop_when)
        if tool.rate_limit is not None:
            limit = tool.rate_limit
            yield from (limit.key, limit.rate, limit.per_seconds, limit.burst)
        yield from (assignment.value for assignment in tool.set)
        for rule in tool.rules:
            yield _as_template(rule.when)
            yield from (assignment.value for assignment in rule.then.set)


def _tools(step: Step, workbook: Mapping[str, WorkbookTask]) -> list[Tool]:
    """The step's own, and all that it may call."""
    calls_workbook = any(task.tool.kind == ToolKind.WORKBOOK for task in step.tasks)
    called = [entry.tool for entry in workbook.values()] if calls_workbook else []
    return [*(task.tool for task in step.tasks), *called]


def _as_template(condition: Condition) -> Condition:
    """A condition may be written without its braces."""
    return f"{{{{ {condition} }}}}" if isinstance(condition, str) and "{{" not in condition else condition
