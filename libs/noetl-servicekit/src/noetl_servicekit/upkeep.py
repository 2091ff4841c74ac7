"""Does what open parts need now and then, as a loop like all others."""

import asyncio
from collections.abc import Callable

from noetl_core.ports.upkeep import Upkeep

from noetl_servicekit.logging import get_logger

logger = get_logger()


async def keep_up(upkeep: Upkeep, beat: Callable[[], None]) -> None:
    """For ever; one that hangs is seen by whoever waits for a beat."""
    while True:
        beat()
        await asyncio.sleep(upkeep.every_seconds)
        try:
            await upkeep.once()
        except Exception as exc:  # whatever it is, the next one is due all the same
            logger.warning("upkeep.failed", upkeep=upkeep.name, reason=repr(exc))
