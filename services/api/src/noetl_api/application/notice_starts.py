"""Tells the planner of an execution that it starts, so that it need wait neither for the commit nor for the bus."""

from __future__ import annotations

import asyncio
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.errors import NoetlError
from noetl_core.ports.notices import Notices
from noetl_servicekit.logging import get_logger

logger = get_logger()

MAX_UNDER_WAY: Final = 100
"""Behind a planner that is slow or away; beyond that the bus is as quick."""

MAX_TOLD_BYTES: Final = 64 * 1024
"""Of variables that are sent along; the planner reads more of them from the store."""


class NoticeStarts:
    """Nobody waits for it, and whatever goes wrong costs the time of the way over the bus, and nothing else."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._under_way: set[asyncio.Task[None]] = set()

    def __call__(self, execution_id: int, first: StoredEvent, workload: bytes) -> None:
        """Returns at once."""
        if len(self._under_way) < MAX_UNDER_WAY:
            told = workload if len(workload) <= MAX_TOLD_BYTES else b""
            task = asyncio.create_task(self._tell(execution_id, first, told), name=f"notice {execution_id}")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Leave the rest to the bus."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _tell(self, execution_id: int, first: StoredEvent, workload: bytes) -> None:
        try:
            await self._notices.notice(execution_id, [first], workload=workload)
        except NoetlError as exc:
            logger.debug("execution.notice_failed", execution_id=str(execution_id), code=exc.code)
