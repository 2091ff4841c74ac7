"""The in-memory twin of the list of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from noetl_core.errors import InvalidInput
from noetl_core.ports.workers import PresentWorker, WorkerReport


class InMemoryWorkerPresence:
    """Port `WorkerPresence`, by a clock that a test may set."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._present: dict[str, tuple[PresentWorker, datetime]] = {}

    async def report(self, report: WorkerReport, *, lease_seconds: float) -> None:
        """Until its lease ends."""
        if not report.worker_id or lease_seconds <= 0:
            raise InvalidInput("a worker has a name, and is there for some time")
        now = self._clock()
        before = self._present.get(report.worker_id)
        started_at = before[0].started_at if before else now
        worker = PresentWorker(report=report, started_at=started_at, heard_at=now)
        self._present[report.worker_id] = (worker, now + timedelta(seconds=lease_seconds))

    async def leave(self, worker_id: str) -> None:
        """At once."""
        self._present.pop(worker_id, None)

    async def list(self, *, pool: str = "") -> Sequence[PresentWorker]:
        """By name."""
        now = self._clock()
        there = [worker for worker, until in self._present.values() if until > now]
        chosen = [worker for worker in there if not pool or worker.report.pool == pool]
        return sorted(chosen, key=lambda worker: worker.report.worker_id)
