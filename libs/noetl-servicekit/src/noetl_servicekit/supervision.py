"""Background loops: trouble around them starts them again, trouble in them takes the process down."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from noetl_core.errors import NoetlError

from noetl_servicekit.logging import get_logger
from noetl_servicekit.telemetry import LoopMetrics

logger = get_logger()

Beat = Callable[[], None]
LoopBody = Callable[[Beat], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the next try; a loop that ran well for a while starts from the beginning."""

    first_seconds: float = 0.1
    factor: float = 2.0
    max_seconds: float = 10.0

    def delay(self, failures_in_a_row: int) -> float:
        doublings = min(failures_in_a_row - 1, 30)  # far beyond the maximum, and far below an overflow
        return float(min(self.max_seconds, self.first_seconds * self.factor**doublings))


class SupervisedLoop:
    """Starts a loop again, later and later, while it fails for reasons that pass; any other end is a bug."""

    def __init__(
        self,
        name: str,
        body: LoopBody,
        *,
        beat: Beat,
        metrics: LoopMetrics,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._body = body
        self._beat = beat
        self._restarts = metrics.restarts.labels(name)
        self._backoff = backoff
        self._clock = clock

    async def run(self, stopping: asyncio.Event) -> None:
        """Returns when the loop has ended because the process stops; raises when the process must."""
        failures = 0
        while True:
            started_at = self._clock()
            try:
                await self._body(self._beat)
            except NoetlError as exc:
                if not exc.retryable:
                    raise
                if self._clock() - started_at > self._backoff.max_seconds:
                    failures = 0
                failures += 1
                await self._wait(exc, failures, stopping)
            else:
                if not stopping.is_set():
                    raise RuntimeError(f"loop {self._name!r} ended although nobody stopped it")
            if stopping.is_set():
                return

    async def _wait(self, exc: NoetlError, failures: int, stopping: asyncio.Event) -> None:
        delay = self._backoff.delay(failures)
        self._restarts.inc()
        logger.warning("loop.restarting", loop=self._name, code=exc.code, reason=exc.message, delay_seconds=delay)
        try:
            async with asyncio.timeout(delay):
                await stopping.wait()
        except TimeoutError:
            return
