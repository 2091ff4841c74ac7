"""A worker tells that it is there, whatever becomes of api, and that it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from noetl_core.errors import Unavailable
from noetl_core.ports.workers import PresentWorker, WorkerReport
from noetl_testkit.memory.workers import InMemoryWorkerPresence
from noetl_worker.entrypoints.presence import leave, tell_presence
from structlog.testing import capture_logs


class FlakyPresence(InMemoryWorkerPresence):
    """Away every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.told_twice = asyncio.Event()

    async def report(self, report: WorkerReport, *, lease_seconds: float) -> None:
        self.asked += 1
        if self.asked % 2:
            raise Unavailable("api is away")
        await super().report(report, lease_seconds=lease_seconds)
        if self.asked >= 4:
            self.told_twice.set()

    async def leave(self, worker_id: str) -> None:
        raise Unavailable("api is away")


async def names(presence: InMemoryWorkerPresence) -> Sequence[str]:
    there: Sequence[PresentWorker] = await presence.list()
    return [worker.report.worker_id for worker in there]


async def test_a_worker_goes_on_telling_through_outages() -> None:
    presence, beats = FlakyPresence(), 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    telling = asyncio.create_task(
        tell_presence(presence, lambda: WorkerReport(worker_id="w"), every_seconds=0.001, beat=beat)
    )
    with capture_logs() as logs:
        async with asyncio.timeout(30):
            await presence.told_twice.wait()
    telling.cancel()

    assert beats >= 4
    assert {log["event"] for log in logs} == {"worker.presence_not_told"}


async def test_a_worker_that_stops_is_off_the_list_and_an_api_that_is_away_does_not_keep_it() -> None:
    presence = InMemoryWorkerPresence()
    await presence.report(WorkerReport(worker_id="w"), lease_seconds=60)

    await leave(presence, "w")
    await leave(FlakyPresence(), "w")

    assert await names(presence) == []
