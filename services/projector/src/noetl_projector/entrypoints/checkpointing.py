"""When barriers and marks are written: every second, whatever came, and once more at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from noetl_core.errors import DeadlinePassed, NoetlError
from noetl_servicekit.logging import get_logger

from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints

logger = get_logger()

LAST_SECONDS: Final = 2.0
"""How long the shards that are to be released wait for their last barriers and marks."""


async def checkpoint_regularly(
    checkpoints: Checkpoints, barriers: Barriers, *, every_seconds: float, beat: Callable[[], None]
) -> None:
    """Write for ever; raises while the database is away."""
    while True:
        beat()
        await asyncio.sleep(every_seconds)
        await barriers.write()
        await checkpoints.flush()
        await barriers.tell()  # last: it may have to wait for api, and needs nothing of the others


async def write_last(checkpoints: Checkpoints, barriers: Barriers, *, seconds: float = LAST_SECONDS) -> None:
    """What the second that was under way has brought, before somebody else owns it; not for long, and raises nothing.

    The marks come first: they need the database alone, while telling a checkpoint may have to wait for api.
    """
    try:
        async with asyncio.timeout(seconds):
            await checkpoints.flush()
            await barriers.close()
    except (NoetlError, TimeoutError) as exc:  # The next event of each execution closes what came before it.
        failure = exc if isinstance(exc, NoetlError) else DeadlinePassed(f"it took longer than {seconds:g} s")
        logger.warning("projector.last_barriers_failed", code=failure.code, reason=failure.message)
