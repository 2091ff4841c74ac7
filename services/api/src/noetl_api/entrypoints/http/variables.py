"""Variables of executions over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, ExecutionIdOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/vars", tags=["executions"])


class VariablesOut(BaseModel):
    """The variables of an execution, as `ctx` stands at its last event."""

    execution_id: str
    variables: dict[str, Any]
    references: dict[str, Any] = Field(description="Variables that are too large to be shown here.")
    count: int


@router.get("/{execution_id}")
async def get_variables(
    execution_id: ExecutionIdOf, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> VariablesOut:
    """The workload, and over it what was set since the start."""
    shown = await use_cases.read_variables(caller, scope, execution_id)
    return VariablesOut(
        execution_id=str(execution_id),
        variables=shown.values,
        references=shown.references,
        count=len(shown.values) + len(shown.references),
    )
