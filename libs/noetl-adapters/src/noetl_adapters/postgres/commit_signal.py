"""Wakes a publisher when something is committed in a shard that it drains."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


class PostgresCommitSignal:
    """Remembers which shards moved since somebody last waited; fed by a `PostgresCommitListener`."""

    def __init__(self) -> None:
        self._moved: set[int] = set()
        self._everything = False
        self._waiter: asyncio.Future[None] | None = None
        self._shards: Collection[int] = ()

    def hear(self, notice: str) -> None:
        """Take in a notice; one that cannot be read may concern anything."""
        try:
            self._moved.update([int(item.partition(":")[0]) for item in notice.split()])
        except ValueError:
            self._everything = True
        if self._waiter is not None and self._concerns(self._shards):
            self.wake()

    async def wait(self, shards: Collection[int], *, timeout_seconds: float) -> bool:
        """Return True as soon as one of the shards moved since the last call, False when the time is over."""
        if not self._concerns(shards):
            loop = asyncio.get_running_loop()
            self._waiter, self._shards = loop.create_future(), shards
            timer = loop.call_later(timeout_seconds, self.wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self.heard(shards)

    def heard(self, shards: Collection[int]) -> bool:
        """Whether one of the shards moved since the last call, of either kind."""
        concerned = self._concerns(shards)
        self._moved.clear()
        self._everything = False
        return concerned

    def wake(self) -> None:
        """End a wait that is under way."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _concerns(self, shards: Collection[int]) -> bool:
        return self._everything or not self._moved.isdisjoint(shards)
