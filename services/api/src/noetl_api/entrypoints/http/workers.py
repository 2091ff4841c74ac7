"""Workers over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from noetl_core.ports.workers import PresentWorker
from pydantic import BaseModel, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, UseCasesOf

router = APIRouter(prefix="/api/workers", tags=["workers"])


class CapacityOut(BaseModel):
    """How much a worker can take."""

    slots: int
    busy: int
    free: int


class WorkerOut(BaseModel):
    """A worker that was heard of lately."""

    worker_id: str
    pool: str
    locator: str
    capacity: CapacityOut
    kinds: list[str] = Field(description="Tool kinds that it can run.")
    version: str
    started_at: datetime
    heard_at: datetime

    @classmethod
    def of(cls, worker: PresentWorker) -> WorkerOut:
        report = worker.report
        return cls(
            worker_id=report.worker_id,
            pool=report.pool,
            locator=report.locator,
            capacity=CapacityOut(slots=report.slots, busy=report.busy, free=max(report.slots - report.busy, 0)),
            kinds=[*report.kinds],
            version=report.version,
            started_at=worker.started_at,
            heard_at=worker.heard_at,
        )


class WorkersOut(BaseModel):
    """Workers by name, and what they can take together."""

    workers: list[WorkerOut]
    capacity: CapacityOut


@router.get("")
async def list_workers(
    caller: CallerOf, use_cases: UseCasesOf, pool: Annotated[str, Query(description="Only this pool.")] = ""
) -> WorkersOut:
    """The workers that were heard of lately."""
    workers = [WorkerOut.of(worker) for worker in await use_cases.workers.list(caller, pool=pool)]
    total = CapacityOut(
        slots=sum(worker.capacity.slots for worker in workers),
        busy=sum(worker.capacity.busy for worker in workers),
        free=sum(worker.capacity.free for worker in workers),
    )
    return WorkersOut(workers=workers, capacity=total)
