"""Wakes workers as soon as their commands are committed, without the way through the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from noetl_core.append import Hint
from noetl_core.errors import NoetlError
from noetl_core.ports.bus import Message, Publisher
from noetl_servicekit.logging import get_logger

logger = get_logger()

MAX_WAITING: Final = 500
"""Behind a bus that is slow or away; beyond that the outbox is as quick."""


class WakeWorkers:
    """Publishes hints under the ids that their outbox rows have, so that the bus drops whichever comes second.

    Whatever goes wrong here costs the time of the other way, and nothing else.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._waiting: list[Hint] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._task is None

    @property
    def waiting_count(self) -> int:
        """How many hints wait for the batch under way."""
        return len(self._waiting)

    def __call__(self, hints: Sequence[Hint]) -> None:
        """Returns at once; what comes while a batch is under way goes with the next."""
        own = [hint for hint in hints if hint.message_id]
        if len(self._waiting) + len(own) > MAX_WAITING:
            return
        self._waiting += own
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._publish(), name="wake workers")

    async def close(self) -> None:
        """Leave what is not published to the outbox."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _publish(self) -> None:
        try:
            while self._waiting:
                hints, self._waiting = self._waiting, []
                await self._publisher.publish_batch(
                    [Message(subject=hint.subject, message_id=hint.message_id, body=hint.body) for hint in hints]
                )
        except NoetlError as exc:
            self._waiting = []
            logger.debug("planner.wake_failed", reason=exc.message)
        finally:
            self._task = None
