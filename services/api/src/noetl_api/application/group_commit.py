"""Group commit without a timer: commit at once when idle, collect while a commit is in flight."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from noetl_core.append import Ahead, Appended, AppendRequest, PreparedRequest
from noetl_core.envelope import StoredEvent
from noetl_core.errors import DeadlinePassed, NoetlError, Overloaded, Unavailable
from noetl_core.events import is_terminal
from noetl_core.ports.event_log import EventPage, HeadPage, Scope
from noetl_servicekit.logging import get_logger

from noetl_api.application.commit_signal import CommitSignal
from noetl_api.telemetry import AppendMetrics

logger = get_logger()

MAX_BATCH_WEIGHT: Final = 1_000
MAX_QUEUED_WEIGHT: Final = 20_000
LONGEST_COMMIT_SECONDS: Final = 30.0
"""PostgreSQL ends a transaction after five: one that takes so long hangs, and everybody behind it with it."""
BYTES_PER_WEIGHT: Final = 8_192
"""An event counts as one, and more if it is large: both the number and the bytes of a batch are bounded."""

Outcome = tuple[Appended, ...] | NoetlError


class BatchLog(Protocol):
    """The log below: commits batches, and reads."""

    async def commit(self, requests: Sequence[PreparedRequest], *, ahead: Ahead | None = None) -> list[Outcome]:
        """One transaction; each request gets its own outcome.

        `ahead`, for a request by itself, may be told of what is about to be written. That is then written exactly so,
        or never: the outcome is `Overtaken`.
        """
        ...

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """As `EventLog.read`."""
        ...

    async def moved_heads(
        self,
        shards: Sequence[int],
        *,
        moved_since: datetime | None,
        after: tuple[datetime, int] | None,
        open_only: bool,
        limit: int,
    ) -> HeadPage:
        """As `EventLog.moved_heads`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request on its way into a transaction, and where its caller waits."""

    prepared: PreparedRequest
    events: int
    weight: int
    answer: asyncio.Future[Outcome]
    ahead: Ahead | None


class _Moved(NamedTuple):
    """What a commit has added to a stream."""

    execution_id: int
    events: Sequence[StoredEvent]
    ended: bool


class GroupCommit:
    """Port `EventLog` for this process: requests that arrive during a commit share the next transaction.

    A caller that goes away does not take its request with it: what was queued is committed.
    """

    def __init__(
        self,
        log: BatchLog,
        *,
        prepare: Callable[[AppendRequest], PreparedRequest],
        signal: CommitSignal,
        metrics: AppendMetrics,
        max_batch_weight: int = MAX_BATCH_WEIGHT,
        max_queued_weight: int = MAX_QUEUED_WEIGHT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self.read = log.read
        self.moved_heads = log.moved_heads
        self._prepare = prepare
        self._signal = signal
        self._metrics = metrics
        self._max_batch_weight = max_batch_weight
        self._max_queued_weight = max_queued_weight
        self._queue: deque[_Waiting] = deque()
        self._queued_weight = 0
        self._committing: asyncio.Task[None] | None = None
        self._closed = False
        self._clock = clock
        self._batch_began: float | None = None

    def stuck(self) -> str | None:
        """What is wrong, if the batch under way does not end; for the health of the process."""
        if self._batch_began is None or self._clock() - self._batch_began <= LONGEST_COMMIT_SECONDS:
            return None
        return f"a commit has been under way for {self._clock() - self._batch_began:.0f} s"

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """Append all of the request or nothing; returns when that is durable."""
        return await self._append(request, None)

    async def append_ahead(self, request: AppendRequest, ahead: Ahead) -> tuple[Appended, ...]:
        """As `append`, but tells what it comes to before that is durable, and raises `Overtaken` if it is not to be.

        Under load nothing is told: what shares its transaction with others is not certain before.
        """
        return await self._append(request, ahead)

    async def _append(self, request: AppendRequest, ahead: Ahead | None) -> tuple[Appended, ...]:
        started_at = time.perf_counter()
        try:
            outcome = await self._enqueue(self._prepare(request), ahead)
            if isinstance(outcome, NoetlError):
                raise outcome
            return outcome
        except NoetlError as refusal:
            self._metrics.refused.labels(refusal.code).inc()
            raise
        finally:
            self._metrics.seconds.observe(time.perf_counter() - started_at)

    async def close(self) -> None:
        """Take nothing more, and return when everything that was taken is answered."""
        self._closed = True
        while self._committing is not None:
            await asyncio.wait({self._committing})

    async def _enqueue(self, prepared: PreparedRequest, ahead: Ahead | None) -> Outcome:
        if self._closed:
            raise Unavailable("this replica is stopping")
        events, weight, largest = _measure(prepared)
        self._metrics.event_bytes.observe(largest)
        if self._queue and self._queued_weight + weight > self._max_queued_weight:
            raise Overloaded(f"{len(self._queue)} appends wait already")
        waiting = _Waiting(prepared, events, weight, asyncio.get_running_loop().create_future(), ahead)
        self._queue.append(waiting)
        self._queued_weight += weight
        self._metrics.queued_events.inc(events)
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_until_idle(), name="group commit")
        return await waiting.answer

    async def _commit_until_idle(self) -> None:
        try:
            while self._queue:
                await self._commit(self._take_batch())
        finally:
            self._committing = None

    def _take_batch(self) -> list[_Waiting]:
        batch = [self._queue.popleft()]
        weight = batch[0].weight
        while self._queue and weight + self._queue[0].weight <= self._max_batch_weight:
            batch.append(self._queue.popleft())
            weight += batch[-1].weight
        self._queued_weight -= weight
        return batch

    async def _commit(self, batch: list[_Waiting]) -> None:
        events = sum(waiting.events for waiting in batch)
        self._metrics.queued_events.dec(events)
        self._metrics.batch_events.observe(events)
        started_at = time.perf_counter()
        self._batch_began = self._clock()
        try:
            with self._signal.committing(_streams(batch)):
                outcomes = await self._log.commit(
                    [waiting.prepared for waiting in batch], ahead=batch[0].ahead if len(batch) == 1 else None
                )
                self._metrics.commit_seconds.observe(time.perf_counter() - started_at)
                for waiting, outcome in zip(batch, outcomes, strict=True):
                    self._tell(waiting, outcome)
        except Exception as exc:
            self._fail(batch, exc)
        finally:
            self._batch_began = None

    def _tell(self, waiting: _Waiting, outcome: Outcome) -> None:
        """Whoever is woken first runs first: callers have work to go on with, followers wait for the end."""
        news = () if isinstance(outcome, NoetlError) else self._news(waiting.prepared, outcome)
        answer = waiting.answer
        if not answer.done() and not any(moved.ended for moved in news):
            answer.set_result(outcome)
        request = waiting.prepared.request
        scope = Scope(tenant_id=request.tenant_id, organization_id=request.organization_id)
        for moved in news:
            self._signal.moved(
                moved.execution_id, moved.events[-1].stream_version, moved.events, ended=moved.ended, scope=scope
            )
        if not answer.done():  # its caller may have gone
            answer.set_result(outcome)

    def _fail(self, batch: list[_Waiting], exc: Exception) -> None:
        """Tell exactly these callers; whether the transaction was committed is not known, their keys will tell."""
        away = isinstance(exc, Unavailable | DeadlinePassed)
        if away:
            logger.warning("append.database_away", requests=len(batch), reason=str(exc))
        else:
            logger.error("append.commit_failed", requests=len(batch), reason=str(exc), exc_info=exc)
        for waiting in batch:
            # Each gets an error of its own: raising one object in several tasks would mix up their tracebacks.
            error = Unavailable(str(exc)) if away else NoetlError("the append failed; the log of this replica says why")
            if not waiting.answer.done():
                waiting.answer.set_result(error)

    def _news(self, prepared: PreparedRequest, appended: tuple[Appended, ...]) -> list[_Moved]:
        news: list[_Moved] = []
        place = 0
        for stream in prepared.streams:
            outcomes = appended[place : place + len(stream.drafts)]
            place += len(stream.drafts)
            added = [event for event, duplicate in outcomes if not duplicate]
            self._metrics.duplicates.inc(len(outcomes) - len(added))
            for draft, (_, duplicate) in zip(stream.drafts, outcomes, strict=True):
                if draft.result is not None and not duplicate:
                    self._metrics.result_bytes.observe(len(draft.result))
            if added:
                self._metrics.events.inc(len(added))
                ended = any(is_terminal(draft.draft.event_type) for draft in stream.drafts)
                news.append(_Moved(stream.append.execution_id, added, ended))
        return news


def _streams(batch: Sequence[_Waiting]) -> set[int]:
    return {stream.append.execution_id for waiting in batch for stream in waiting.prepared.streams}


def _measure(prepared: PreparedRequest) -> tuple[int, int, int]:
    """Number of drafts, weight, and bytes of the largest one."""
    sizes = [len(draft.body) for stream in prepared.streams for draft in stream.drafts]
    largest = max(sizes)
    more = sum(size // BYTES_PER_WEIGHT for size in sizes) if largest >= BYTES_PER_WEIGHT else 0
    return len(sizes), len(sizes) + more, largest
