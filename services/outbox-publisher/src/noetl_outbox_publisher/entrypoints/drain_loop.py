"""Drains whenever something is committed; between commits it only looks now and then, as a safety net."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from noetl_core.errors import DeadlinePassed, NoetlError
from noetl_core.ports.outbox import CommitSignal, Outbox
from noetl_servicekit.logging import get_logger
from noetl_servicekit.supervision import Backoff

from noetl_outbox_publisher.application.drain import Drain
from noetl_outbox_publisher.telemetry import PublisherMetrics

logger = get_logger()

BACKLOG_SECONDS = 2.0
RETRY = Backoff(first_seconds=0.05, max_seconds=1.0)
SETTLE_SECONDS = 0.02
"""After which what was published is deleted by itself. A commit that comes before has it deleted with what it brings,
in one statement; nobody waits for that, and nobody is published later for it."""


class DrainLoop:
    """Goes on through everything that passes: a bus that is away, a database that is away."""

    def __init__(
        self,
        drain: Drain,
        signal: CommitSignal,
        *,
        shard_count: int,
        poll_seconds: float,
        stopping: asyncio.Event,
    ) -> None:
        self._drain = drain
        self._signal = signal
        self._shard_count = shard_count
        self._poll_seconds = poll_seconds
        self._stopping = stopping
        self._failures = 0
        self._reason = ""

    async def run(self, beat: Callable[[], None]) -> None:
        """Until the process stops; the batch under way is finished."""
        with self._woken_to_stop():
            while not self._stopping.is_set():
                more = await self._try_step()
                if self._failures == 0:
                    beat()  # a loop that only fails is not healthy
                if not more:
                    await self._idle()

    async def until_empty(self, outbox: Outbox, *, timeout_seconds: float) -> None:
        """For `--once`: until nothing waits any more, whoever published it; raises `DeadlinePassed`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._until_empty(outbox)
        except TimeoutError as exc:
            raise DeadlinePassed(f"the outbox was not empty after {timeout_seconds:g} s") from exc

    async def _until_empty(self, outbox: Outbox) -> None:
        with self._woken_to_stop():
            while not self._stopping.is_set():
                more = await self._try_step()
                if not more and await self._try_to_settle() and (await outbox.backlog()).rows == 0:
                    return
                if not more:
                    await self._idle()

    async def _try_step(self) -> bool:
        try:
            await self._drain.begin(shard_count=self._shard_count)
            more = await self._drain.step()
        except NoetlError as exc:
            self._fail(exc)
            return False
        if self._failures:
            logger.info("outbox.resumed", failures=self._failures)
            self._failures, self._reason = 0, ""
        return more

    async def _try_to_settle(self) -> bool:
        """Delete what was published, if nothing is in the way."""
        if self._failures == 0:
            try:
                await self._drain.settle()
            except NoetlError as exc:
                self._fail(exc)
        return self._failures == 0

    def _fail(self, exc: NoetlError) -> None:
        if not exc.retryable:
            raise exc
        self._failures += 1
        if exc.message != self._reason:  # said once, however long it lasts
            logger.warning("outbox.stalled", code=exc.code, reason=exc.message)
            self._reason = exc.message

    async def _idle(self) -> None:
        """Wait for a commit in one of our shards; after a failure, for a while. Not at all if the process stops."""
        if self._stopping.is_set():
            return
        if not self._failures and not self._drain.is_settled:
            if await self._signal.wait(self._drain.shards, timeout_seconds=SETTLE_SECONDS) or self._stopping.is_set():
                return
            await self._try_to_settle()
        if not self._failures:
            await self._signal.wait(self._drain.shards, timeout_seconds=self._poll_seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY.delay(self._failures)):
                await self._stopping.wait()

    @contextmanager
    def _woken_to_stop(self) -> Iterator[None]:
        """While this lasts, whoever waits for commits waits for the end of the process too."""
        stopping = asyncio.create_task(self._stopping.wait())
        stopping.add_done_callback(lambda _: self._signal.wake())
        try:
            yield
        finally:
            stopping.cancel()


async def measure_backlog(outbox: Outbox, metrics: PublisherMetrics, beat: Callable[[], None]) -> None:
    """Show how much waits, and for how long already."""
    while True:
        backlog = await outbox.backlog()
        metrics.waiting_rows.set(backlog.rows)
        metrics.oldest_age_seconds.set(backlog.oldest_age_seconds)
        beat()
        await asyncio.sleep(BACKLOG_SECONDS)
