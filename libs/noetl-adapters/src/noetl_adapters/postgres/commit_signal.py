"""Wakes a publisher when something is committed in a shard that it drains."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress


class PostgresCommitSignal:
    """Remembers which shards moved since somebody last waited; fed by a `PostgresCommitListener`."""

    def __init__(self) -> None:
        self._moved: set[int] = set()
        self._everything = False
        self._heard = asyncio.Event()

    def hear(self, notice: str) -> None:
        """Take in a notice; one that cannot be read may concern anything."""
        try:
            self._moved.update(int(item.partition(":")[0]) for item in notice.split())
        except ValueError:
            self._everything = True
        self._heard.set()

    async def wait(self, shards: Collection[int], *, timeout_seconds: float) -> bool:
        """Return True as soon as one of the shards moved since the last call, False when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while not self._concerns(shards):
                    self._heard.clear()
                    await self._heard.wait()
        concerned = self._concerns(shards)
        self._moved.clear()
        self._everything = False
        return concerned

    def _concerns(self, shards: Collection[int]) -> bool:
        return self._everything or not self._moved.isdisjoint(shards)
