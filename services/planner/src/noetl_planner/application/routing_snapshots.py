"""Where the journal of an execution begins that is not known here, and what is left for the next one that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from noetl_core.append import Fence
from noetl_core.errors import Fenced, NoetlError, NotOwner
from noetl_core.journal import Journal, Settled
from noetl_core.ports.event_log import EventLog, EventPage
from noetl_core.ports.routing_snapshots import RoutingSnapshots
from noetl_core.routing_snapshots import Refusal, RoutingSnapshot, open_routing, take_routing
from noetl_servicekit.logging import get_logger

from noetl_planner.telemetry import PlannerMetrics

logger = get_logger()

READ_PAGE: Final = 500
FETCHED_AT_ONCE: Final = 8
"""A takeover finds many executions at once, and each snapshot may have some megabytes."""


class KeepRouting:
    """Begins with snapshots that can be proven, and writes new ones, one at a time, while turns go on.

    Nothing depends on them: whatever is wrong with one costs the reading of events, and is counted.
    """

    def __init__(
        self,
        store: RoutingSnapshots,
        *,
        rules: str,
        every_events: int,
        fence: Callable[[int], Fence],
        metrics: PlannerMetrics,
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._store = store
        self._rules = rules
        self._every = every_events
        self._fence = fence
        self._metrics = metrics
        self._aside = aside
        self._places = asyncio.Semaphore(FETCHED_AT_ONCE)
        self._offered: dict[int, tuple[Settled, int]] = {}
        """The newest state and the shard, by execution."""
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, log: EventLog, execution_id: int, *, trusted: bool = True) -> tuple[Journal, EventPage]:
        """A journal, and the page of the log that it goes on with.

        The first page tells how long the history is: a short one costs nothing but that.
        """
        limit = min(READ_PAGE, self._every) if self._every else READ_PAGE
        first = await log.read(None, execution_id, from_version=1, limit=limit)
        is_long = self._every and first.head_version - len(first.events) >= self._every
        begun = await self._restored(log, execution_id) if is_long and trusted else None
        if begun is None:
            return Journal(execution_id), first
        self._metrics.events_read.inc(len(first.events))
        self._metrics.recovery_events.inc(len(first.events))
        return begun

    def is_due(self, *, events_since: int) -> bool:
        """Whether enough has happened since the last one."""
        return 0 < self._every <= events_since

    def offer(self, settled: Settled, *, shard: int) -> None:
        """Leave this for whoever owns the shard next; returns at once, and does not tell what became of it."""
        self._offered[settled.state.execution.execution_id] = (settled, shard)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_offered(), name="routing-snapshots")

    def refuse(self, execution_id: int, reason: Refusal, detail: str = "") -> None:
        """A snapshot was not begun with."""
        self._metrics.snapshots_refused.labels(reason=str(reason)).inc()
        logger.warning("planner.snapshot_refused", execution_id=str(execution_id), reason=str(reason), detail=detail)

    async def close(self) -> None:
        """Write no more."""
        self._offered.clear()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _restored(self, log: EventLog, execution_id: int) -> tuple[Journal, EventPage] | None:
        settled = await self._opened(execution_id)
        if settled is None:
            return None
        version = settled.state.stream_version
        page = await log.read(None, execution_id, from_version=version, limit=READ_PAGE)
        last = page.events[0] if page.events else None
        if last is None or (last.stream_version, last.checksum) != (version, settled.event_checksum):
            self.refuse(execution_id, Refusal.OTHER_LOG)
            return None
        self._metrics.snapshots_used.inc()
        self._metrics.events_spared.inc(version)
        logger.info("planner.snapshot_used", execution_id=str(execution_id), version=version, head=page.head_version)
        return Journal(execution_id, begins_with=settled), page

    async def _opened(self, execution_id: int) -> Settled | None:
        async with self._places:
            try:
                found = await self._store.find(execution_id)
            except NoetlError as exc:
                self.refuse(execution_id, Refusal.UNAVAILABLE, exc.message)
                return None
            if found is None:
                return None
            try:
                opened: Settled | Refusal = await self._aside(
                    open_routing, found, execution_id=execution_id, rules=self._rules
                )
            except Exception as exc:  # A snapshot that nobody can read must not set an execution aside.
                self.refuse(execution_id, Refusal.DAMAGED, repr(exc))
                return None
        if isinstance(opened, Refusal):
            self.refuse(execution_id, opened)
            return None
        return opened

    async def _write_offered(self) -> None:
        try:
            while self._offered:
                execution_id = next(iter(self._offered))
                settled, shard = self._offered.pop(execution_id)
                outcome, detail = await self._written(settled, shard)
                self._metrics.snapshots_written.labels(outcome=outcome).inc()
                if detail:
                    logger.warning(
                        "planner.snapshot_not_written",
                        execution_id=str(execution_id),
                        version=settled.state.stream_version,
                        reason=detail,
                    )
        finally:
            self._writing = None

    async def _written(self, settled: Settled, shard: int) -> tuple[str, str]:
        """What became of it, and what to say about it."""
        try:
            snapshot: RoutingSnapshot | None = await self._aside(take_routing, settled, rules=self._rules)
            if snapshot is None:
                return "too_large", "its state is too large"
            kept = await self._store.keep(snapshot, fence=self._fence(shard))
        except (Fenced, NotOwner):
            return "fenced", ""
        except Exception as exc:  # It is tried again when as much has happened once more.
            return "failed", exc.message if isinstance(exc, NoetlError) else repr(exc)
        return ("written" if kept else "outdated"), ""


class RoutingOf:
    """What one execution begins with, and when it leaves something itself."""

    def __init__(self, execution_id: int, *, shard: int, keep: KeepRouting) -> None:
        self._execution_id = execution_id
        self._shard = shard
        self._keep = keep
        self._is_trusted = True
        self._offered_at = 0
        """Version of the last state that was offered, whatever became of it."""

    async def begin(self, log: EventLog) -> tuple[Journal, EventPage]:
        """A journal, and the page of the log that it goes on with."""
        return await self._keep.begin(log, self._execution_id, trusted=self._is_trusted)

    def offer(self, journal: Journal) -> None:
        """Leave the state behind, if enough has happened, it waits for nothing and somebody may want it."""
        since = journal.known_version - max(self._offered_at, journal.begun_at)
        if not self._keep.is_due(events_since=since):
            return
        settled = journal.settled
        if settled is not None and not settled.state.execution.status.is_final:
            self._offered_at = journal.known_version
            self._keep.offer(settled, shard=self._shard)

    def doubts(self, journal: Journal, exc: Exception) -> bool:
        """Whether a turn failed on top of a snapshot: it may not fail on top of the log, which is all that counts."""
        if not journal.begun_at:
            return False
        self._keep.refuse(self._execution_id, Refusal.MISLEADING, repr(exc))
        self._is_trusted = False
        self._offered_at = 0
        return True


class _NothingKept:
    """Nothing is found, and nothing is asked for."""

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """There is none."""
        return None

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """It is not kept."""
        return False


def keep_no_routing(metrics: PlannerMetrics, fence: Callable[[int], Fence]) -> KeepRouting:
    """Every journal begins with the first event."""
    return KeepRouting(_NothingKept(), rules="", every_events=0, fence=fence, metrics=metrics)
