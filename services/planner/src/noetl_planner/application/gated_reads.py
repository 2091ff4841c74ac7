"""The log as actors read it: so many of them at a time, however many are behind."""

from __future__ import annotations

import asyncio
from typing import Final

from noetl_core.ports.event_log import EventLog, EventPage, Scope

READS_AT_ONCE: Final = 64
"""Enough to keep api busy; it refuses everybody's calls when it has a few thousand."""


class GatedReads:
    """After an outage or a takeover thousands of executions are behind at once, and others have calls for api too."""

    def __init__(self, log: EventLog, *, at_once: int = READS_AT_ONCE) -> None:
        self.append = log.append
        self.moved_heads = log.moved_heads
        self._read = log.read
        self._places = asyncio.Semaphore(at_once)

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """As `EventLog.read`, in turn."""
        async with self._places:
            return await self._read(scope, execution_id, from_version=from_version, to_version=to_version, limit=limit)
