"""The collection of payloads that no event reaches, over HTTP."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from noetl_core.collection.report import CollectionReport
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/payloads", tags=["payloads"])


class CollectBody(BaseModel):
    """What is to be done."""

    model_config = ConfigDict(extra="forbid")

    apply: bool = Field(default=False, description="False means a dry run: nothing is changed.")
    grace_seconds: float = Field(default=0.0, ge=0, description="0 means what the server is set to.")


class CollectionOut(BaseModel):
    """What was found and done; of a dry run, what would have been done."""

    applied: bool
    grace_seconds: float
    events: int = Field(description="Events that were read.")
    organizations: int
    payloads: int = Field(description="Payloads in their place.")
    payload_bytes: int
    unreferenced: int = Field(description="Those of them that no event reaches.")
    unreferenced_bytes: int
    young: int = Field(description="Of these, those that are too young to be marked.")
    marked: int = Field(description="Marked now: their grace period begins.")
    marked_bytes: int
    waiting: int = Field(description="Marked or withdrawn earlier, and in their grace period.")
    next_due: datetime | None = Field(description="When the first of them can be dealt with.")
    withdrawn: int = Field(description="Put aside now, after their grace period.")
    withdrawn_bytes: int
    spared: int = Field(description="Marked earlier, and reached by an event or gone by now.")
    swept: int = Field(description="Deleted now.")
    swept_bytes: int
    restored: int = Field(description="Put back in their place, since an event reaches them by now.")
    collections: list[str] = Field(description="Executions whose events tell of what was done.")

    @classmethod
    def of(cls, report: CollectionReport) -> CollectionOut:
        values = {name: getattr(report, name) for name in cls.model_fields if name != "collections"}
        return cls(**values, collections=[str(execution_id) for execution_id in report.collections])


@router.post("/collect")
async def collect_payloads(
    caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf, body: CollectBody | None = None
) -> CollectionOut:
    """Find payloads that no event reaches and, with `apply`, take their collection further: mark, withdraw, sweep."""
    wanted = body or CollectBody()
    reports = use_cases.collect_payloads(caller, scope, apply=wanted.apply, grace_seconds=wanted.grace_seconds)
    async for report in reports:
        last = report
    return CollectionOut.of(last)
