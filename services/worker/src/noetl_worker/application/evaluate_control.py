"""Evaluates control expressions for the planner, with the data that events do not carry; loads what they read only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.executions.evaluate import evaluate
from noetl_core.executions.evaluation import Evaluation
from noetl_core.executions.evaluators import NeedsEvaluation, Recording
from noetl_core.executions.names import LOADED, LOADED_FACTS
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.executions.step_scope import SCOPE
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.control import references_after, references_before
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.playbook.large_results import LargeResult, LargeView
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.model import Step as PlaybookStep
from noetl_core.playbook.outputs import kept_output, seen
from noetl_core.playbook.views import Key, NotInView, View
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.event_log import Scope
from noetl_core.streams.state import Chunk
from noetl_servicekit.chunk_rows import LoadRows, chunks_of, with_rows
from noetl_servicekit.loop_results import LoopResults, is_loop_reference

from noetl_worker.application.credential_names import is_credential_name
from noetl_worker.application.event_result import EventResult
from noetl_worker.application.lazy_table import LazyChunks, LazyTable, WantedRows
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace, failed_with, nothing_stored
from noetl_worker.application.result_refs import facts_ref, result_ref, view_ref

MAX_VALUE_BYTES = 1024
"""A value above this is told by reference."""
MAX_ANSWERS_BYTES = 8 * 1024
"""Together they take no more than this, if storing some of them helps."""
MAX_EVENT_BYTES = 256 * 1024
_REFERENCE_BYTES = 512
"""What a reference takes in the answers, about; storing smaller values gains nothing."""


class EvaluateControl:
    """Pure in what it answers, so that any worker may do it again."""

    def __init__(self, persist: PersistBeforeEmit, rows: LoadRows, loops: LoopResults | None = None) -> None:
        self._persist = persist
        self._loops = loops
        self._rows = rows

    async def __call__(self, command: GrantedCommand, playbook: Playbook) -> EventResult:
        """The `result` of the event that closes an internal command; what an expression cannot do is an answer too."""
        evaluation = Evaluation.from_json(command.evaluation or {})
        try:
            recording = await self._evaluate(command, evaluation, playbook)
            answers = await self._told(command, recording, playbook.steps[evaluation.step])
        except NotFound as exc:
            return _failed(ErrorKind.STORAGE_ACCESS, exc.code, exc.message, retryable=True)
        except InvalidInput as exc:
            return _failed(ErrorKind.TRANSFORM, exc.code, exc.message, retryable=False)
        return nothing_stored({"evaluation": answers})

    async def _evaluate(self, command: GrantedCommand, evaluation: Evaluation, playbook: Playbook) -> Recording:
        workload = {} if command.workload is None else await self._rows.values.get(command.workload)
        plan = Plan(playbook=playbook, workload=workload if isinstance(workload, dict) else {})
        data = _Data(playbook, Scope(tenant_id=command.tenant_id, organization_id=command.organization_id))
        while True:
            execution = data.execution(command, evaluation)
            asked = replace(evaluation, chunk=data.chunk(evaluation.chunk))
            try:
                # In a thread: large data take long to look through, and leases must be kept up meanwhile.
                return await asyncio.to_thread(evaluate, asked, execution, plan)
            except NeedsEvaluation as exc:
                if not data.wanted:
                    raise TemplateFailed("it reads what cannot be loaded", expression=str(exc)) from exc
                for place, wanted in tuple(data.wanted.items()):
                    data.loaded[place] = await self._load_wanted(command, wanted)
                data.wanted.clear()

    async def _load_wanted(self, command: GrantedCommand, wanted: _Wanted) -> Any:
        if isinstance(wanted, PayloadRef):
            return await self._rows.values.get(wanted)
        if isinstance(wanted, WantedRows):
            return await self._rows.parts.get(wanted.ref, wanted.index, wanted.batches)
        if self._loops is None:
            raise InvalidInput("the results of a loop cannot be read here")
        scope = Scope(tenant_id=command.tenant_id, organization_id=command.organization_id)
        return await self._loops(scope, command.key.execution_id, wanted)

    async def _told(self, command: GrantedCommand, recording: Recording, step: PlaybookStep) -> JsonObject:
        """The answers, as small as an event wants them; what is too large, or may be a secret, is stored."""
        whose = ResultPlace(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
        )
        stored: dict[str, PayloadRef] = {}
        for place in _to_store(recording.values, hide_texts=_speaks_of_credentials(step)):
            stored[place] = await self._persist.put(whose, encode(recording.values[place]))
        answers = recording.told(stored)
        size = len(encode(answers))
        if size > MAX_EVENT_BYTES:
            reason = f"the values of its expressions take {size} bytes, {MAX_EVENT_BYTES} are allowed"
            raise TemplateFailed(reason, expression=step.name)
        return answers


@dataclass(slots=True)
class _Data:
    """What has been loaded so far, by locator, and what an expression wanted to read besides."""

    playbook: Playbook
    scope: Scope
    loaded: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, _Wanted] = field(default_factory=dict)

    def execution(self, command: GrantedCommand, evaluation: Evaluation) -> Execution:
        """The execution as the planner sees it, with data in the place of references."""
        steps = {
            name: Step(status=StepStatus.DONE, result={**self._with_scope(result), **self._loaded_of(name, result)})
            for name, result in command.results.items()
        }
        before = steps.get(evaluation.step)
        steps[evaluation.step] = Step(
            status=StepStatus.ACTIVE,
            activation=evaluation.activation,
            cause_step=command.cause_step,
            result=before.result if before else None,
            chunk=self.chunk(command.chunk),
        )
        stored = {name: self._value(ref) for name, ref in command.variables.refs.items()}
        return Execution(
            execution_id=command.key.execution_id,
            catalog_id=command.catalog_id,
            variables={**command.variables.values, **stored},
            steps=steps,
        )

    def chunk(self, chunk: Chunk | None) -> Chunk | None:
        """A chunk with its rows, or what notes that they are wanted."""
        if chunk is None:
            return None
        rows = self._value(PayloadRef.from_json(chunk.reference))
        return replace(chunk, reference={**chunk.reference, LOADED: rows})

    def _with_scope(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """What tasks have set for the activation, with the data of what is stored."""
        context = result.get("context") or {}
        told = context.get(SCOPE) or {}
        if not told.get("refs"):
            return result
        refs = {name: {**ref, LOADED: self._value(PayloadRef.from_json(ref))} for name, ref in told["refs"].items()}
        return {**result, "context": {**context, SCOPE: {**told, "refs": refs}}}

    def _loaded_of(self, name: str, result: Mapping[str, Any]) -> dict[str, object]:
        beside = facts_ref(result.get("reference") or {})
        facts = {} if beside is None else {LOADED_FACTS: self._value(beside)}
        return {LOADED: self._result(name, result), **facts}

    def _result(self, name: str, result: Mapping[str, Any]) -> object:
        reference = result.get("reference")
        if reference and is_loop_reference(reference):
            return self._at(reference["ref_id"], result)
        if reference:
            return seen(self._stored(reference), kept_output(self.playbook, name))
        error = (result.get("context") or {}).get("error")
        return {"status": "error", "error": error} if error else None

    def _stored(self, reference: Mapping[str, Any]) -> object:
        """A large result is read through its view; the data follow when that is not enough."""
        beside = view_ref(reference)
        data = self._value(result_ref(reference))
        if beside is None:
            return data
        if beside.uri not in self.loaded:
            return self._value(beside)
        large = LargeView.from_json(self.loaded[beside.uri])
        if large.table is not None and isinstance(data, View):
            data = LazyTable(result_ref(reference), large.table, data, self.loaded, self.wanted)
        return LargeResult(large, data)

    def _value(self, ref: PayloadRef) -> object:
        return self._at(ref.uri, ref)

    def _at(self, place: str, source: _Wanted) -> object:
        if place not in self.loaded:
            return _Unloaded(place, source, self.wanted)
        return with_rows(self.loaded[place], self._chunks)

    def _chunks(self, mark: list[list[JsonValue]]) -> object:
        """Rows that went out in chunks are read as other rows are, and loaded when somebody does."""
        scope = self.scope
        chunks = chunks_of(mark, tenant_id=scope.tenant_id, organization_id=scope.organization_id)
        rows = LazyChunks(chunks, self.loaded, self.wanted)
        return rows[:] if all(one.ref.uri in self.loaded for one in chunks) else rows


_Wanted: TypeAlias = PayloadRef | WantedRows | Mapping[str, Any]
"""A payload, some rows of one, or the result of a loop, whose items stand in many."""


class _Unloaded(View):
    """Remembers that somebody wanted to look."""

    def __init__(self, place: str, source: _Wanted, wanted: dict[str, _Wanted]) -> None:
        self._place = place
        self._source = source
        self._wanted = wanted

    def lookup(self, key: Key) -> object:
        return self.whole()

    def whole(self) -> object:
        self._wanted[self._place] = self._source
        raise NotInView(f"{self._place} is not loaded yet")


def _to_store(values: Mapping[str, JsonValue], *, hide_texts: bool) -> Iterable[str]:
    """Places whose values events shall not carry: the large ones, the largest of too many, and possible secrets."""
    sizes = {place: len(encode(value)) for place, value in values.items()}
    chosen = {
        place for place, value in values.items() if sizes[place] > MAX_VALUE_BYTES or (hide_texts and _has_text(value))
    }
    total = sum(sizes[place] for place in values if place not in chosen)
    for place in sorted(sizes, key=lambda place: -sizes[place]):
        if total <= MAX_ANSWERS_BYTES or sizes[place] <= _REFERENCE_BYTES:
            break
        if place not in chosen:
            chosen.add(place)
            total -= sizes[place]
    return [place for place in values if place in chosen]


def _has_text(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(map(_has_text, value.values()))
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str)


def _speaks_of_credentials(step: PlaybookStep) -> bool:
    """Whether a control expression of the step reads, or sets, something that is named as secrets are."""
    assignments = [*step.set, *(one for arc in step.next.arcs for one in arc.set)]
    paths = [*references_after(step), *references_before(step), *(one.path for one in assignments)]
    return any(is_credential_name(key) for path in paths for key in path)


def _failed(kind: ErrorKind, code: str, message: str, *, retryable: bool) -> EventResult:
    return failed_with(Outcome.failed(kind=kind, code=code, message=message, retryable=retryable))
