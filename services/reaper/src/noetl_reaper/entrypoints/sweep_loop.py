"""Looks for silent work every few seconds; nothing needs it sooner, since leases last longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noetl_core.ports.leases import ShardLeases
from noetl_servicekit.shard_ownership import check_shard_count

from noetl_reaper.application.reclaim_commands import ReclaimCommands


async def sweep_regularly(
    reclaim: ReclaimCommands,
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
        await reclaim()
        await asyncio.sleep(every_seconds)
