from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from noetl_testkit.compliance.workers import ADA, WorkerPresenceCompliance
from noetl_testkit.memory.workers import InMemoryWorkerPresence


class TestInMemoryWorkerPresence(WorkerPresenceCompliance):
    @pytest.fixture
    def workers(self) -> InMemoryWorkerPresence:
        return InMemoryWorkerPresence()


async def test_those_who_fall_silent_are_forgotten() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    workers = InMemoryWorkerPresence(clock=lambda: now)
    await workers.report(ADA, lease_seconds=10)
    now += timedelta(seconds=11)

    assert await workers.list() == []
