"""When heads are compared: every few seconds, at once when shards were gained, and often while the bus is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from noetl_projector.application.compare_heads import CompareHeads


async def compare_regularly(
    compare: CompareHeads,
    *,
    every_seconds: float,
    away_every_seconds: float,
    bus_is_away: Callable[[], bool],
    hurry: asyncio.Event,
    beat: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Compare for ever; raises while api or the database is away."""
    next_comparison = clock()
    while True:
        beat()
        hurry.clear()
        if compare.has_gained or clock() >= next_comparison:
            await compare(bus_is_away=bus_is_away(), beat=beat)
            next_comparison = clock() + every_seconds
        else:
            if compare.has_more:
                await compare.go_on(beat=beat)
            if bus_is_away():
                await compare.glance(beat=beat)
        with suppress(TimeoutError):
            pause = away_every_seconds if bus_is_away() else max(next_comparison - clock(), 0.0)
            if compare.has_more:
                pause = 0.0
            async with asyncio.timeout(pause):
                await hurry.wait()
