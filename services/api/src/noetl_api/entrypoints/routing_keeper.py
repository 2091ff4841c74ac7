"""Drops routing state of executions that have ended: nobody takes them over any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from noetl_core.ports.routing_snapshots import RoutingSnapshotStore
from noetl_servicekit.logging import get_logger

logger = get_logger()

EVERY_SECONDS: Final = 600.0
MAX_SILENCE_SECONDS: Final = 2 * EVERY_SECONDS


async def drop_ended_routing(
    snapshots: RoutingSnapshotStore, *, beat: Callable[[], None], every_seconds: float = EVERY_SECONDS
) -> None:
    """Look now and then; every replica does, and finds little."""
    while True:
        beat()
        if dropped := await snapshots.drop_ended():
            logger.info("routing.dropped", count=dropped)
        await asyncio.sleep(every_seconds)
