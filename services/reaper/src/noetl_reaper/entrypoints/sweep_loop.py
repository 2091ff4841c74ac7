"""Looks for silent work every few seconds, since leases last longer than that; and for deadlines more often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from noetl_core.append import Fence

Look = Callable[[Fence], Awaitable[object]]


async def sweep_regularly(
    look: Look, *, elected: Callable[[], Fence | None], every_seconds: float, beat: Callable[[], None]
) -> None:
    """Sweep for ever, while this is the reaper that is at work; raises while the projector is away."""
    while True:
        beat()
        if (fence := elected()) is not None:
            await look(fence)
        await asyncio.sleep(every_seconds)
