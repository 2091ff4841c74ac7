"""Lets in no more executions than planners have room for: a flood of them waits at whoever starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from noetl_core.errors import Overloaded
from noetl_servicekit.logging import get_logger

from noetl_api.telemetry import ApiMetrics

logger = get_logger()

EVERY_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 2.0


class OpenExecutions(Protocol):
    """Knows how many executions have not ended."""

    async def count(self, *, at_most: int) -> int:
        """How many there are, counted no further than asked."""
        ...


class Admission:
    """Executions that others wait for are always let in: a parent that is open would wait for ever.

    Counted now and then, with those that were let in since: replicas together let in too many by what they start
    between two counts, which is a number and no flood.
    """

    def __init__(self, open_executions: OpenExecutions, *, at_most: int, metrics: ApiMetrics) -> None:
        self._open_executions = open_executions
        self._at_most = at_most
        self._metrics = metrics
        self._counted = 0
        self._just_let_in = 0
        """Since the last count was begun."""
        self._let_in_before = 0
        """Between the count before and the last one, which may have missed what was not committed yet."""

    def __call__(self) -> None:
        """Let one more in; raises `Overloaded` if there is no room for it."""
        if not self._at_most:
            return
        if self._counted + self._let_in_before + self._just_let_in >= self._at_most:
            self._metrics.starts_refused.inc()
            raise Overloaded(
                f"{self._at_most} executions are open, and no more are let in until some have ended",
                retry_seconds=RETRY_SECONDS,
            )
        self._just_let_in += 1

    async def measure(self) -> None:
        """Count anew; what was let in lately may be counted twice for a while, which only makes it careful."""
        earlier = self._just_let_in
        self._counted = await self._open_executions.count(at_most=self._at_most)
        self._let_in_before = earlier
        self._just_let_in -= earlier
        self._metrics.open_executions.set(self._counted)

    async def keep_measuring(self, beat: Callable[[], None]) -> None:
        """For ever; raises while the database is away, when nothing can be started anyway."""
        while True:
            beat()
            await self.measure()
            await asyncio.sleep(EVERY_SECONDS)


def everybody() -> None:
    """Where nobody counts."""
