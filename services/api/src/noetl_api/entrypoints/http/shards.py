"""Shards over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from noetl_core.ports.leases import ShardLease
from pydantic import BaseModel, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, UseCasesOf

router = APIRouter(prefix="/api/shards", tags=["shards"])


class ShardOut(BaseModel):
    """A shard in one role."""

    role: str
    shard: int
    epoch: int = Field(description="Grows with every change of owner; what a deposed one writes is refused by it.")
    instance: str | None = Field(description="Who owns it; null if nobody does at this moment.")
    address: str | None = Field(description="Where the owner serves gRPC.")
    leased_until: datetime | None = Field(description="When the lease ends unless it is renewed.")

    @classmethod
    def of(cls, lease: ShardLease) -> ShardOut:
        return cls(
            role=lease.role,
            shard=lease.shard,
            epoch=lease.epoch,
            instance=lease.instance or None,
            address=lease.address or None,
            leased_until=lease.leased_until if lease.instance else None,
        )


class ShardsOut(BaseModel):
    """Shards by role and number, and how many of them nobody owns."""

    shards: list[ShardOut]
    unowned: int


@router.get("")
async def list_shards(
    caller: CallerOf,
    use_cases: UseCasesOf,
    role: Annotated[str, Query(description="planner, projector or reaper; all unless it is given.")] = "",
) -> ShardsOut:
    """Who owns which shard; for administrators."""
    shards = [ShardOut.of(lease) for lease in await use_cases.shards.list(caller, role=role)]
    return ShardsOut(shards=shards, unowned=sum(shard.instance is None for shard in shards))
