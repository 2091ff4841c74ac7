"""Tells api that this worker is there, and how busy it is: for people who look, since nothing is decided by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noetl_core.errors import NoetlError
from noetl_core.ports.workers import WorkerPresence, WorkerReport
from noetl_servicekit.logging import get_logger

logger = get_logger()

MAX_LEASE_SECONDS = 3600.0
MIN_LEASE_SECONDS = 60.0
LEASE_ROUNDS = 4
"""A worker is off the list when it was not heard of for so many rounds, and for a minute at least."""


async def tell_presence(
    presence: WorkerPresence, report: Callable[[], WorkerReport], *, every_seconds: float, beat: Callable[[], None]
) -> None:
    """Again and again; an api that is away does no harm."""
    lease_seconds = min(max(every_seconds * LEASE_ROUNDS, MIN_LEASE_SECONDS), MAX_LEASE_SECONDS)
    while True:
        beat()
        try:
            await presence.report(report(), lease_seconds=lease_seconds)
        except NoetlError as exc:
            logger.warning("worker.presence_not_told", reason=exc.message)
        await asyncio.sleep(every_seconds)


async def leave(presence: WorkerPresence, worker_id: str) -> None:
    """When the worker stops; whoever cannot be told will notice by itself."""
    try:
        await presence.leave(worker_id)
    except NoetlError as exc:
        logger.warning("worker.presence_not_told", reason=exc.message)
