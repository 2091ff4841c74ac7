"""Looks for silent work every few seconds, since leases last longer than that; and for deadlines more often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from noetl_core.ports.leases import ShardLeases
from noetl_servicekit.shard_ownership import check_shard_count

Look = Callable[[], Awaitable[object]]


async def sweep_regularly(
    look: Look,
    leases: ShardLeases,
    *,
    shard_count: int,
    every_seconds: float,
    beat: Callable[[], None],
) -> None:
    """Sweep for ever; raises while the projector is away, or if this process does not fit the installation."""
    await check_shard_count(leases, shard_count)
    while True:
        beat()
        await look()
        await asyncio.sleep(every_seconds)
