"""What executions wait for, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from noetl_core.why import Reason
from pydantic import BaseModel, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, ExecutionIdOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/executions", tags=["executions"])


class ReasonOut(BaseModel):
    """One thing that an execution waits for."""

    kind: str = Field(description="running, silent, unclaimed, parked, join, paused, planner, ended and so on.")
    step: str | None
    since: datetime | None
    text: str
    details: dict[str, Any]

    @classmethod
    def of(cls, reason: Reason) -> ReasonOut:
        return cls(
            kind=reason.kind.value,
            step=reason.step or None,
            since=reason.since,
            text=reason.text,
            details=dict(reason.details),
        )


class WhyOut(BaseModel):
    """What an execution waits for, most pressing first."""

    execution_id: str
    status: str
    stream_version: int
    as_of: datetime
    reasons: list[ReasonOut]


@router.get("/{execution_id}/why")
async def why(execution_id: ExecutionIdOf, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> WhyOut:
    """What an execution is waiting for, and since when."""
    explanation = await use_cases.explain_execution(caller, scope, execution_id)
    return WhyOut(
        execution_id=str(explanation.execution_id),
        status=explanation.status,
        stream_version=explanation.stream_version,
        as_of=explanation.as_of,
        reasons=[ReasonOut.of(reason) for reason in explanation.reasons],
    )
