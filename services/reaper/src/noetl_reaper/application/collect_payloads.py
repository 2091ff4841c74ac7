"""Has payloads that no event reaches collected; api, which knows the log, does it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from noetl_core.append import Fence
from noetl_core.collection.report import CollectionReport
from noetl_core.errors import NoetlError, Overloaded
from noetl_core.ports.event_log import Scope
from noetl_servicekit.logging import get_logger

from noetl_reaper.application.election import Election
from noetl_reaper.telemetry import ReaperMetrics

logger = get_logger()


class Collections(Protocol):
    """Takes the collection of everybody's payloads further; served by api."""

    def collect(
        self, scope: Scope | None, *, apply: bool, grace_seconds: float = 0.0, fence: Fence | None = None
    ) -> AsyncIterator[CollectionReport]:
        """Safe to repeat, and to break off; ends when the fence does."""
        ...


class CollectPayloads:
    """Begun by the reaper that is elected; api does one at a time, and the log refuses those of a deposed one."""

    def __init__(self, collections: Collections, *, election: Election, metrics: ReaperMetrics) -> None:
        self._collections = collections
        self._election = election
        self._metrics = metrics

    async def __call__(self, fence: Fence, beat: Callable[[], None]) -> CollectionReport | None:
        """Once; None if it could not be done, which the next time will make up for."""
        last: CollectionReport | None = None
        try:
            async for report in self._collections.collect(None, apply=True, fence=fence):
                last = report
                beat()
        except Overloaded as exc:  # Somebody else does it.
            self._metrics.refused.labels(exc.code).inc()
            return None
        except NoetlError as exc:
            if self._election.ended_by(exc):
                self._metrics.refused.labels(exc.code).inc()
                return None
            self._metrics.failures.labels(exc.code).inc()
            logger.warning("reaper.collection_failed", code=exc.code, reason=exc.message)
            return None
        if last is not None:
            logger.info("reaper.payloads_collected", marked=last.marked, withdrawn=last.withdrawn, swept=last.swept)
        return last
