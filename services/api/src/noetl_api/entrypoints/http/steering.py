"""Pause, resume, finalize and redrive over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from noetl_core.ports.steering import SteerAction
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.application.redrive_execution import RedriveRequest
from noetl_api.entrypoints.http.dependencies import CallerOf, ExecutionIdOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/executions/{execution_id}", tags=["executions"])


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ReasonBody(_Request):
    """Why; it stands in the event."""

    reason: str = ""


class SteerBody(ReasonBody):
    """Whom it is about."""

    cascade: bool = Field(default=False, description="Whether everything that stands below it follows.")


class FinalizeBody(ReasonBody):
    """How the execution is to end."""

    status: str = Field(default="FAILED", description="COMPLETED or FAILED.")


class RedriveBody(ReasonBody):
    """Where the new execution begins."""

    step: str = Field(default="", description="The step to begin with; empty means the one that failed.")
    start_key: str = Field(default="", description="Makes repeated requests start one execution.")
    failed_rows: bool = Field(
        default=False, description="Run only the rows of the step's loop that failed, and nothing that follows it."
    )


class SteeredOut(BaseModel):
    """Where an execution stands now."""

    execution_id: str
    status: str
    stream_version: int
    steered_descendants: int = Field(default=0, description="Executions below it that followed, if that was asked for.")


class RedrivenOut(BaseModel):
    """An execution that takes up another one."""

    execution_id: str
    status: str = "started"
    path: str
    version: int
    step: str
    redrive_of: str
    created: bool
    row_count: int = Field(description="How many failed rows it runs again; 0 if it runs the whole step.")


@router.post("/pause")
async def pause(
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    body: SteerBody | None = None,
) -> SteeredOut:
    """Issue and grant no commands until it is resumed; what runs goes on to its end, and deadlines count."""
    wanted = body or SteerBody()
    steered = await use_cases.steer_execution(
        caller, scope, execution_id, SteerAction.PAUSE, reason=wanted.reason, cascade=wanted.cascade
    )
    return SteeredOut(
        execution_id=str(execution_id),
        status=steered.status,
        stream_version=steered.stream_version,
        steered_descendants=steered.descendants,
    )


@router.post("/resume")
async def resume(
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    body: SteerBody | None = None,
) -> SteeredOut:
    """Go on with what was held back."""
    wanted = body or SteerBody()
    steered = await use_cases.steer_execution(
        caller, scope, execution_id, SteerAction.RESUME, reason=wanted.reason, cascade=wanted.cascade
    )
    return SteeredOut(
        execution_id=str(execution_id),
        status=steered.status,
        stream_version=steered.stream_version,
        steered_descendants=steered.descendants,
    )


@router.post("/finalize")
async def finalize(
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    body: FinalizeBody | None = None,
) -> SteeredOut:
    """Force an end, good or bad; what runs is stopped, and what it would have delivered is ignored."""
    wanted = body or FinalizeBody()
    ended = await use_cases.finalize_execution(caller, scope, execution_id, status=wanted.status, reason=wanted.reason)
    return SteeredOut(execution_id=str(execution_id), status=ended.status, stream_version=ended.stream_version)


@router.post("/redrive")
async def redrive(
    *,
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    body: RedriveBody | None = None,
    idempotency_key: Annotated[str, Header(description="Another way to give the start key.")] = "",
) -> RedrivenOut:
    """Start a new execution at a step of an ended one, with its results and variables."""
    wanted = body or RedriveBody()
    redriven = await use_cases.redrive_execution(
        caller,
        scope,
        RedriveRequest(
            execution_id=execution_id,
            step=wanted.step,
            reason=wanted.reason,
            start_key=wanted.start_key or idempotency_key,
            failed_rows=wanted.failed_rows,
        ),
    )
    return RedrivenOut(
        execution_id=str(redriven.execution_id),
        path=redriven.path,
        version=redriven.version,
        step=redriven.step,
        redrive_of=str(execution_id),
        created=redriven.created,
        row_count=redriven.row_count,
    )
