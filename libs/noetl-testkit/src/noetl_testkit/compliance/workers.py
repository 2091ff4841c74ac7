"""What every list of workers must do; an adapter's tests subclass this and supply one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime

import pytest
from noetl_core.errors import InvalidInput
from noetl_core.ports.workers import WaitingRetry, WorkerPresence, WorkerReport

RETRY = WaitingRetry(
    command_id="c", task="fetch", attempt=2, attempts=5, next_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
)
ADA = WorkerReport(
    worker_id="ada",
    pool="large",
    locator="noetl://x",
    slots=8,
    busy=3,
    kinds=("http", "python"),
    version="1",
    retries=(RETRY,),
)
BOB = WorkerReport(worker_id="bob", slots=2)


class WorkerPresenceCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def workers(self) -> WorkerPresence:
        """A list with nobody on it."""

    async def test_those_who_report_are_listed_by_name_with_all_they_said(self, workers: WorkerPresence) -> None:
        await workers.report(BOB, lease_seconds=60)
        await workers.report(ADA, lease_seconds=60)

        listed = await workers.list()

        assert [worker.report for worker in listed] == [ADA, BOB]
        assert all(worker.started_at <= worker.heard_at for worker in listed)

    async def test_a_pool_can_be_asked_for(self, workers: WorkerPresence) -> None:
        await workers.report(ADA, lease_seconds=60)
        await workers.report(BOB, lease_seconds=60)

        assert [worker.report.worker_id for worker in await workers.list(pool="default")] == ["bob"]
        assert await workers.list(pool="empty") == []

    async def test_the_last_report_counts_and_the_first_tells_the_start(self, workers: WorkerPresence) -> None:
        await workers.report(BOB, lease_seconds=60)
        (before,) = await workers.list()
        busier = WorkerReport(worker_id="bob", slots=2, busy=2)
        await workers.report(busier, lease_seconds=60)

        (after,) = await workers.list()

        assert (after.report, after.started_at) == (busier, before.started_at)
        assert after.heard_at >= before.heard_at

    async def test_those_who_leave_are_gone_and_may_leave_twice(self, workers: WorkerPresence) -> None:
        await workers.report(ADA, lease_seconds=60)
        for _ in range(2):
            await workers.leave("ada")

        assert await workers.list() == []

    async def test_a_worker_has_a_name_and_a_time(self, workers: WorkerPresence) -> None:
        with pytest.raises(InvalidInput):
            await workers.report(WorkerReport(worker_id=""), lease_seconds=60)
        with pytest.raises(InvalidInput):
            await workers.report(ADA, lease_seconds=0)
