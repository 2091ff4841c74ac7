"""What calls printed, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from noetl_core.call_logs import EndedCallLog
from pydantic import BaseModel, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, ExecutionIdOf, PageSize, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/executions", tags=["executions"])


class OutputOut(BaseModel):
    """What one run of one task printed; the middle of long output is left out, with a note."""

    task: str
    run: int
    stdout: str
    stderr: str


class CallLogOut(BaseModel):
    """What the calls of one attempt of a step printed."""

    stream_version: int
    step: str
    command_id: str
    activation: int
    attempt: int
    failed: bool
    ended_at: datetime
    outputs: list[OutputOut]
    left_out_runs: int
    first_runs: int = Field(description="How many outputs stand before those that were left out.")
    missing: str = Field(description="Why the output cannot be shown; empty if it can.")

    @classmethod
    def of(cls, call: EndedCallLog) -> CallLogOut:
        log = call.log
        return cls(
            stream_version=call.stream_version,
            step=log.step,
            command_id=call.command_id,
            activation=log.activation,
            attempt=log.attempt,
            failed=call.failed,
            ended_at=call.ended_at,
            outputs=[
                OutputOut(task=one.task, run=one.run, stdout=one.stdout, stderr=one.stderr) for one in log.outputs
            ],
            left_out_runs=log.left_out_runs,
            first_runs=log.first_runs,
            missing=call.missing,
        )


class LogsOut(BaseModel):
    """A page of logs."""

    logs: list[CallLogOut]
    next_version: int = Field(description="Give it as `from_version` for the next page; 0 when there is none.")


@router.get("/{execution_id}/logs")
async def get_logs(
    *,
    execution_id: ExecutionIdOf,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    step: Annotated[str, Query(description="Only this step.")] = "",
    attempt: Annotated[int, Query(ge=0, description="Only this attempt; 0 means all.")] = 0,
    from_version: Annotated[int, Query(ge=0, description="Where to begin; 0 means at the start.")] = 0,
    page_size: PageSize = 0,
) -> LogsOut:
    """What user code printed, in the order in which its calls ended."""
    page = await use_cases.read_logs.page(
        caller, scope, execution_id, step=step, attempt=attempt, from_version=from_version, size=page_size
    )
    return LogsOut(logs=[CallLogOut.of(call) for call in page.calls], next_version=page.next_version)
