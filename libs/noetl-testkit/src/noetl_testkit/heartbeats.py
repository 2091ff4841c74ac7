"""One round of a worker's heartbeats, as its loop makes them, until all of it is answered."""

import asyncio

from noetl_worker.application.slots import Slots


async def tell_of_all(slots: Slots) -> None:
    """Commands, frames that are due, and news."""
    await asyncio.gather(*(slots.beats.tell_of(beat) for beat in slots.beats.take_due(is_round=True)))
