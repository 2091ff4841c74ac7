"""When barriers and marks are written: every second, whatever came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints


async def checkpoint_regularly(
    checkpoints: Checkpoints, barriers: Barriers, *, every_seconds: float, beat: Callable[[], None]
) -> None:
    """Write for ever; raises while the database is away."""
    while True:
        beat()
        await asyncio.sleep(every_seconds)
        await barriers.close()
        await checkpoints.flush()
