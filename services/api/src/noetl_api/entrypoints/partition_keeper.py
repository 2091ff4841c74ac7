"""Keeps the partitions of the log ahead of its executions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from noetl_servicekit.logging import get_logger

from noetl_api.telemetry import ApiMetrics

logger = get_logger()

EVERY_SECONDS: Final = 3600.0
MAX_SILENCE_SECONDS: Final = 2 * EVERY_SECONDS


class Partitions(Protocol):
    """Makes partitions that are missing."""

    async def ensure(self) -> int:
        """Returns how many were made."""
        ...


async def ensure_partitions(partitions: Partitions, metrics: ApiMetrics) -> None:
    """Make what is missing for now and the weeks ahead."""
    made = await partitions.ensure()
    if made:
        metrics.partitions_made.inc(made)
        logger.info("partitions.made", count=made)


async def keep_partitions(partitions: Partitions, metrics: ApiMetrics, *, beat: Callable[[], None]) -> None:
    """Look every hour, beginning one after the start; there are weeks to notice that it fails."""
    while True:
        beat()
        await asyncio.sleep(EVERY_SECONDS)
        await ensure_partitions(partitions, metrics)
