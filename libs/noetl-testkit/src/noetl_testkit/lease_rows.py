"""Leases as their rows tell them, by the clock that judges them: no matter how slow whoever looks is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

_ROWS = """
SELECT role, shard_id, epoch, coalesce(owner_instance, '') AS instance, leased_until, clock_timestamp() AS now
FROM noetl.execution_shard ORDER BY role, shard_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """One shard of one role, at one moment."""

    role: str
    shard_id: int
    epoch: int
    instance: str
    leased_until: datetime
    now: datetime


def lease_rows(stack: LocalStack, *instances: str) -> list[LeaseRow]:
    """All of them, or those of some instances."""

    async def ask() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(stack.owner_dsn)
        try:
            return list(await connection.fetch(_ROWS))
        finally:
            await connection.close()

    rows = [LeaseRow(**dict(row)) for row in asyncio.run(ask())]
    return [row for row in rows if not instances or row.instance in instances]


def taken_over(
    stack: LocalStack, lost: Collection[LeaseRow], *, seconds: float, meanwhile: Callable[[], object] = lambda: None
) -> datetime:
    """Waits until others have all of it, each in a later epoch; when they were seen to, by PostgreSQL's clock."""
    before = {(row.role, row.shard_id): row for row in lost}

    def have_passed() -> datetime | None:
        meanwhile()
        rows = lease_rows(stack)
        moved = [row for row in rows if (known := before.get((row.role, row.shard_id))) and row.epoch > known.epoch]
        others = all(row.instance not in ("", before[(row.role, row.shard_id)].instance) for row in moved)
        return rows[0].now if others and len(moved) == len(before) else None

    found = eventually(have_passed, seconds=seconds)
    assert found is not None
    return found
