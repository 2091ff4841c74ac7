"""When barriers and marks are written: every second, whatever came, and once more at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noetl_core.errors import NoetlError
from noetl_servicekit.logging import get_logger

from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints

logger = get_logger()


async def checkpoint_regularly(
    checkpoints: Checkpoints, barriers: Barriers, *, every_seconds: float, beat: Callable[[], None]
) -> None:
    """Write for ever; raises while the database is away."""
    while True:
        beat()
        await asyncio.sleep(every_seconds)
        await barriers.close()
        await checkpoints.flush()


async def write_last(checkpoints: Checkpoints, barriers: Barriers) -> None:
    """What the second that was under way has brought, before somebody else owns it; raises nothing."""
    try:
        await barriers.close()
        await checkpoints.flush()
    except NoetlError as exc:  # The next event of each execution closes what came before it.
        logger.warning("projector.last_barriers_failed", code=exc.code, reason=exc.message)
