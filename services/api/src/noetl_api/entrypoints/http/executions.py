"""Executions over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from noetl_core.errors import InvalidInput
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ids import parse_id

from noetl_api.application.start_execution import StartRequest
from noetl_api.entrypoints.http.dependencies import (
    CallerOf,
    ExecutionIdOf,
    PageSize,
    PageToken,
    ScopeOf,
    UseCasesOf,
)
from noetl_api.entrypoints.http.schemas import (
    CancelBody,
    CancelledOut,
    EventOut,
    EventsOut,
    ExecuteBody,
    ExecutionDetailOut,
    ExecutionOut,
    ExecutionsOut,
    Pagination,
    StartedOut,
    StatusOut,
)

router = APIRouter(prefix="/api", tags=["executions"])

DEFAULT_EVENTS_PAGE = 100

MinVersion = Annotated[int, Query(ge=0, description="Wait until the answer includes this version.")]


@router.post("/execute")
async def execute(
    body: ExecuteBody,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    idempotency_key: Annotated[str, Header(description="Another way to give the start key.")] = "",
) -> StartedOut:
    """Start a playbook, pinned to the version that it resolves to now."""
    if body.payload is not None and body.workload is not None:
        raise InvalidInput("payload and workload are two names of one thing: give one of them")
    started = await use_cases.start_execution(
        caller,
        scope,
        StartRequest(
            path=body.path,
            version=body.version,
            catalog_id=body.catalog_id,
            payload=body.payload or body.workload or {},
            start_key=body.start_key or idempotency_key,
            parent_execution_id=(
                parse_id(body.parent_execution_id, what="parent_execution_id") if body.parent_execution_id else None
            ),
        ),
    )
    return StartedOut(
        execution_id=str(started.execution_id), path=started.path, version=started.version, created=started.created
    )


@router.get("/executions")
async def list_executions(
    *,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    status: Annotated[str, Query(description="Only this status.")] = "",
    path: Annotated[str, Query(description="Only this playbook.")] = "",
    parent_execution_id: Annotated[str, Query(description="Only children of this execution.")] = "",
    page_size: PageSize = 0,
    page_token: PageToken = "",
) -> ExecutionsOut:
    """Executions as projected, newest first."""
    page = await use_cases.query_executions.list(
        caller,
        scope,
        status=status,
        path=path,
        parent_execution_id=(
            parse_id(parent_execution_id, what="parent_execution_id") if parent_execution_id else None
        ),
        size=page_size,
        token=page_token,
    )
    return ExecutionsOut(
        executions=[ExecutionOut.of(view) for view in page.executions], next_page_token=page.next_page_token
    )


@router.get("/executions/{execution_id}")
async def get_execution(
    *,
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    min_version: MinVersion = 0,
    page: Annotated[int, Query(ge=0, description="Page of events to show, from 1; 0 shows none.")] = 0,
    page_size: PageSize = 0,
) -> ExecutionDetailOut:
    """One execution with its state, as of its last event."""
    view = await use_cases.query_executions.get(caller, scope, execution_id, min_version=min_version)
    progress = view.state.get("loop_progress")
    detail = ExecutionDetailOut(
        **ExecutionOut.fields_of(view),
        state=dict(view.state),
        loop_progress=progress if isinstance(progress, dict) else {},
    )
    if page == 0 and page_size == 0:
        return detail
    number, size = max(page, 1), page_size or DEFAULT_EVENTS_PAGE
    read = await use_cases.read_events.page(
        caller, scope, execution_id, from_version=(number - 1) * size + 1, size=size
    )
    detail.events = [EventOut.of(event) for event in read.page.events]
    detail.pagination = Pagination(
        page=number, page_size=size, total=read.page.head_version, has_next=read.next_version > 0
    )
    return detail


@router.get("/executions/{execution_id}/status")
async def get_status(
    execution_id: ExecutionIdOf, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf, min_version: MinVersion = 0
) -> StatusOut:
    """Where an execution stands."""
    view = await use_cases.query_executions.get(caller, scope, execution_id, min_version=min_version)
    status = ExecutionStatus(view.status)
    return StatusOut(
        execution_id=str(execution_id),
        status=status.value,
        completed=status.is_final,
        failed=status is ExecutionStatus.FAILED,
        error=dict(view.error) if view.error is not None else None,
        stream_version=view.stream_version,
    )


@router.get("/executions/{execution_id}/events")
async def get_events(
    *,
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    from_version: Annotated[int, Query(ge=0, description="First version wanted; 0 means from the start.")] = 0,
    to_version: Annotated[int, Query(ge=0, description="Last version wanted; 0 means to the head.")] = 0,
    page_size: PageSize = 0,
) -> EventsOut:
    """The history of an execution, page by page."""
    read = await use_cases.read_events.page(
        caller, scope, execution_id, from_version=from_version, to_version=to_version, size=page_size
    )
    return EventsOut(
        events=[EventOut.of(event) for event in read.page.events],
        next_version=read.next_version,
        head_version=read.page.head_version,
        terminal=read.page.terminal,
    )


@router.post("/executions/{execution_id}/cancel")
async def cancel(
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    body: CancelBody | None = None,
) -> CancelledOut:
    """End an execution and its descendants now; repeating it is harmless, and goes on where it was interrupted."""
    wanted = body or CancelBody()
    cancelled = await use_cases.cancel_execution(
        caller, scope, execution_id, reason=wanted.reason, cascade=wanted.cascade
    )
    return CancelledOut(
        execution_id=str(execution_id),
        stream_version=cancelled.stream_version,
        cancelled_descendants=cancelled.descendants,
    )
