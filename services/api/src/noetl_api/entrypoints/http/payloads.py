"""Payloads and lineage, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from noetl_core.lineage import TracedResult
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from noetl_api.application.payloads import FoundPayload
from noetl_api.entrypoints.http.dependencies import CallerOf, ExecutionIdOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api", tags=["payloads"])

LocatorOf = Annotated[
    str,
    Query(
        description="`noetl://tenant/<t>/org/<o>/payloads/sha256/<digest>` (`uri` of a reference), "
        "or `noetl://execution/<id>/result/<step>/<digest>` (`ref_id`)."
    ),
]


class PayloadOut(BaseModel):
    """What is known of a payload, without its bytes."""

    uri: str
    sha256: str
    media_type: str = Field(description="As its result says; application/octet-stream when asked for by digest.")
    bytes: int = Field(description="Length of the stored bytes.")
    stored_at: datetime | None
    reference: dict[str, Any] | None = Field(description="The whole reference, when asked for by result.")

    @classmethod
    def of(cls, found: FoundPayload) -> PayloadOut:
        ref = found.ref
        return cls(
            uri=ref.uri,
            sha256=ref.sha256,
            media_type=ref.media_type,
            bytes=ref.bytes,
            stored_at=found.stored_at,
            reference=found.reference,
        )


class TracedResultOut(BaseModel):
    """One result of a chain."""

    step: str
    stream_version: int
    event_id: str
    command_id: str
    status: str
    recorded_at: datetime
    reference: dict[str, Any]
    parent_ref: dict[str, str] | None

    @classmethod
    def of(cls, result: TracedResult) -> TracedResultOut:
        return cls(
            step=result.step,
            stream_version=result.stream_version,
            event_id=str(result.event_id),
            command_id=result.command_id,
            status=result.status,
            recorded_at=result.recorded_at,
            reference=result.reference,
            parent_ref=None if result.parent_ref_id is None else {"ref_id": result.parent_ref_id},
        )


class TraceOut(BaseModel):
    """Where a result came from."""

    execution_id: str
    step: str
    results: list[TracedResultOut] = Field(description="The result itself, the one it was made from, and so on.")
    truncated: bool


@router.get("/payloads")
async def get_payload(*, locator: LocatorOf, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> PayloadOut:
    """Size, type and age of a payload."""
    return PayloadOut.of(await use_cases.read_payloads.find(caller, scope, locator))


@router.get("/payloads/content", response_class=StreamingResponse)
async def get_payload_content(
    *, locator: LocatorOf, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> StreamingResponse:
    """The bytes of a payload. An answer that is shorter than its Content-Length was damaged: its end is held back."""
    found = await use_cases.read_payloads.find(caller, scope, locator)
    return StreamingResponse(
        use_cases.read_payloads.content(found),
        media_type=found.ref.media_type,
        headers={
            "Content-Length": str(found.ref.bytes),
            "ETag": f'"{found.ref.sha256}"',
            # Somebody's data, not a page of ours.
            "Content-Disposition": f'attachment; filename="{found.ref.sha256}"',
            "X-Content-Type-Options": "nosniff",
        },
    )


@router.get("/executions/{execution_id}/trace/{step:path}")
async def trace_result(
    *,
    execution_id: ExecutionIdOf,
    step: str,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    at_version: Annotated[int, Query(ge=0, description="The step's last result up to here; 0 means of all.")] = 0,
) -> TraceOut:
    """The result of a step, the result that it was made from, and so on to the first."""
    trace = await use_cases.trace_result(caller, scope, execution_id, step, at_version=at_version)
    return TraceOut(
        execution_id=str(execution_id),
        step=step,
        results=[TracedResultOut.of(result) for result in trace.results],
        truncated=trace.truncated,
    )
