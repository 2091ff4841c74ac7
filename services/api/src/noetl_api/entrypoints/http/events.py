"""Ingestion of events over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from noetl_core.business_objects.events import META_KEY
from noetl_core.envelope import Draft
from noetl_core.errors import InvalidInput
from noetl_core.ids import parse_id
from noetl_core.timestamps import to_utc

from noetl_api.application.ingest_events import IncomingEvent
from noetl_api.entrypoints.http.dependencies import CallerOf, ScopeOf, UseCasesOf
from noetl_api.entrypoints.http.schemas import AppendedBatchOut, AppendedOut, EventBatchBody, EventBody

router = APIRouter(prefix="/api/events", tags=["events"])


@router.post("")
async def ingest(body: EventBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> AppendedOut:
    """Append one event to an execution."""
    (appended,) = await use_cases.ingest_events(caller, scope, [_incoming(body)])
    return AppendedOut.of(appended)


@router.post("/batch")
async def ingest_batch(
    body: EventBatchBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> AppendedBatchOut:
    """Append events to executions, all of them or none."""
    appended = await use_cases.ingest_events(caller, scope, [_incoming(event) for event in body.events])
    return AppendedBatchOut(events=[AppendedOut.of(one) for one in appended])


def _incoming(body: EventBody) -> IncomingEvent:
    return IncomingEvent(
        execution_id=parse_id(body.execution_id, what="execution_id"),
        draft=Draft(
            event_type=body.event_type,
            idempotency_key=body.idempotency_key,
            node_name=body.node_name,
            event_time=to_utc(body.event_time, what="event_time") if body.event_time else None,
            result=_result(body),
            meta=_meta(body),
            expected_aggregate_version=body.expected_object_version,
            causation_id=body.causation_id,
            correlation_id=body.correlation_id,
            command_id=body.command_id,
        ),
    )


def _meta(body: EventBody) -> dict[str, Any]:
    if body.business_object is None:
        if body.expected_object_version is not None:
            raise InvalidInput("expected_object_version is the version of a business_object, and none is named")
        return body.meta
    return {**body.meta, META_KEY: body.business_object}


def _result(body: EventBody) -> dict[str, Any] | None:
    if not body.status and body.context is None:
        return None
    return {"status": body.status or "ok", "reference": None, "parent_ref": None, "context": body.context or {}}
