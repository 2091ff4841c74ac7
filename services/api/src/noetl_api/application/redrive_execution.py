"""Takes up an ended execution again: a new one that begins at a step, with the results and variables of the old."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from noetl_core.append import AppendRequest, StreamAppend, StreamStart
from noetl_core.canonical import encode, sha256_hex
from noetl_core.collection.documents import json_media_type
from noetl_core.envelope import Envelope
from noetl_core.errors import KeyTaken, NotFound, NothingToRedrive, NotTerminal, Rejected
from noetl_core.events import to_draft
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.executions.state import Execution, StepStatus
from noetl_core.payloads import PayloadRef
from noetl_core.ports.catalog import CatalogStore
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.state_json import read_state
from noetl_core.steering.state import Inheritance
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import current_traceparent

from noetl_api.application.failed_rows import FailedRowsOf
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.scopes import acting_scope, visible_scope
from noetl_api.application.start_execution import START_KEY, check_start_key
from noetl_api.application.steer_execution import check_reason
from noetl_api.telemetry import ApiMetrics

logger = get_logger()

MAX_INHERITED_BYTES: Final = 4 * 1024 * 1024
MAX_ENTRY_BYTES: Final = 56 * 1024
"""The planner tells all of it in one append, and each entry in one event."""


class TooMuchToInherit(Rejected):
    """What the old execution has does not fit into the first decision of a new one."""

    code = "execution.redrive_too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveRequest:
    """Which execution, from where, and under which key."""

    execution_id: int
    step: str = ""
    reason: str = ""
    start_key: str = ""
    failed_rows: bool = False
    """Only rows of the step's loop that failed, and nothing that follows the step."""

    def sha256(self) -> str:
        """What makes two redrives under one key the same request."""
        rows = {"failed_rows": True} if self.failed_rows else {}
        return sha256_hex(encode({"redrive_of": str(self.execution_id), "step": self.step, **rows}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """The new execution; `created` is false when its start key had been used before."""

    execution_id: int
    path: str
    version: int
    step: str
    created: bool
    row_count: int = 0
    """How many failed rows it runs again."""


class RedriveExecution:
    """The old execution stays as it is; the new one refers to its data and copies none of them."""

    def __init__(
        self,
        *,
        log: EventLog,
        executions: QueryExecutions,
        catalog: CatalogStore,
        parsed: ParsedPlaybooks,
        payloads: PayloadStore,
        failed_rows: FailedRowsOf,
        next_id: Callable[[], int],
        metrics: ApiMetrics,
    ) -> None:
        self._log = log
        self._executions = executions
        self._catalog = catalog
        self._parsed = parsed
        self._payloads = payloads
        self._failed_rows = failed_rows
        self._next_id = next_id
        self._metrics = metrics

    async def __call__(self, caller: Caller, scope: Scope | None, request: RedriveRequest) -> Redriven:
        """Start it, or find the execution that was started under this key."""
        caller.require(Role.WRITER)
        check_reason(request.reason)
        check_start_key(request.start_key)
        execution = await self._ended(caller, scope, request.execution_id)
        owner = acting_scope(caller, Scope(tenant_id=execution.tenant_id, organization_id=execution.organization_id))
        step = await self._step(owner, execution, request)
        rows = await self._failed_rows(owner, execution, step) if request.failed_rows else None
        content = PlaybookInitialized(
            path=execution.path,
            version=execution.version,
            catalog_id=execution.catalog_id,
            payload_ref=execution.workload,
            redrive_of=str(request.execution_id),
            entry_step=step,
            entry_cause=_cause_of(execution, step),
            entry_chunk=_chunk_of(execution, step),
            entry_rows=rows,
            inherited=(await self._store(owner, execution)).to_json(),
        )
        execution_id = self._next_id()
        first = await self._append(caller, owner, request, execution_id=execution_id, content=content)
        return self._told(first, request, created=first.execution_id == execution_id)

    async def _ended(self, caller: Caller, scope: Scope | None, execution_id: int) -> Execution:
        """The execution as it ended; the projection of a long history may have to be waited for."""
        head = await self._log.read(visible_scope(caller, scope), execution_id, limit=1)
        if not head.terminal:
            raise NotTerminal(str(execution_id))
        view = await self._executions.get(caller, scope, execution_id, min_version=head.head_version)
        return read_state(view.state).execution

    async def _step(self, owner: Scope, execution: Execution, request: RedriveRequest) -> str:
        step = request.step or _where_it_ended(execution)
        if not step:
            raise NothingToRedrive(str(request.execution_id))
        playbook = await self._parsed.of(await self._catalog.get(owner, catalog_id=execution.catalog_id))
        if step not in playbook.steps:
            raise NotFound("step", step, code="execution.step_not_found")
        return step

    async def _store(self, owner: Scope, execution: Execution) -> PayloadRef:
        inheritance = Inheritance(
            results={name: step.result for name, step in execution.steps.items() if step.result is not None},
            values=execution.variables,
            refs=execution.variable_refs,
        )
        _check_size(inheritance)
        data = encode(inheritance.to_json())
        return await self._payloads.put(
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            data=data,
            media_type=json_media_type(data),
        )

    async def _append(
        self,
        caller: Caller,
        owner: Scope,
        request: RedriveRequest,
        *,
        execution_id: int,
        content: PlaybookInitialized,
    ) -> Envelope:
        draft = to_draft(
            content,
            idempotency_key=START_KEY,
            meta={"request_sha256": request.sha256(), "redriven_by": caller.name, "reason": request.reason},
            trace=current_traceparent() or "",
        )
        start = StreamStart(start_key=request.start_key)
        appended = await self._log.append(
            AppendRequest(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                streams=(StreamAppend(execution_id=execution_id, drafts=(draft,), start=start),),
                producer=f"urn:noetl:user:{caller.name}",
            )
        )
        return appended[0].event.envelope()

    def _told(self, first: Envelope, request: RedriveRequest, *, created: bool) -> Redriven:
        meta: Mapping[str, object] = first.meta
        if not created and meta.get("request_sha256") != request.sha256():
            raise KeyTaken(key=request.start_key, event_id=str(first.event_id), stream_version=1)
        redriven = Redriven(
            execution_id=first.execution_id,
            path=str(meta["path"]),
            version=int(str(meta["version"])),
            step=str(meta["entry_step"]),
            created=created,
            row_count=_row_count(meta.get("entry_rows")),
        )
        if created:
            self._metrics.executions_started.inc()
            logger.info(
                "execution.redriven",
                execution_id=str(redriven.execution_id),
                redrive_of=str(request.execution_id),
                step=redriven.step,
                row_count=redriven.row_count,
            )
        return redriven


def _row_count(rows: object) -> int:
    return int(rows["count"]) if isinstance(rows, Mapping) else 0


def _where_it_ended(execution: Execution) -> str:
    """The step that failed, or the only one that ran when time was up or somebody ended the execution."""
    failed = str((execution.error or {}).get("step") or "")
    active = [name for name, step in execution.steps.items() if step.status is StepStatus.ACTIVE]
    return failed or (active[0] if len(active) == 1 else "")


def _cause_of(execution: Execution, step: str) -> str | None:
    """The step that had led there, so that its result is what `result` shows again."""
    known = execution.steps.get(step)
    return known.cause_step or None if known is not None else None


def _chunk_of(execution: Execution, step: str) -> Mapping[str, Any] | None:
    """The chunk that it failed with, or else the last one that it took."""
    known = execution.steps.get(step)
    has_failed = (execution.failure or {}).get("step") == step
    chunk = execution.failed_chunk if has_failed else known.chunk if known is not None else None
    return chunk.to_json() if chunk is not None else None


def _check_size(inheritance: Inheritance) -> None:
    sizes = [
        len(encode(value))
        for entries in (inheritance.results, inheritance.values, inheritance.refs)
        for value in entries.values()
    ]
    if sum(sizes) > MAX_INHERITED_BYTES or max(sizes, default=0) > MAX_ENTRY_BYTES:
        raise TooMuchToInherit(
            f"results and variables take {sum(sizes)} bytes in events, at most {MAX_INHERITED_BYTES} can be taken over"
        )
