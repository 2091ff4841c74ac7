import asyncio

import pytest
from noetl_core.errors import Unavailable
from noetl_core.ports.event_log import EventPage, Scope
from noetl_planner.application.gated_reads import GatedReads
from noetl_testkit.compliance.event_log import note, request, start
from noetl_testkit.memory.event_log import InMemoryEventLog


class SlowLog(InMemoryEventLog):
    """Knows how many read it at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.proceed = asyncio.Event()
        self.reading = self.most = 0
        self.is_away = False

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            await self.proceed.wait()
            if self.is_away:
                raise Unavailable("gone")
            return await super().read(
                scope, execution_id, from_version=from_version, to_version=to_version, limit=limit
            )
        finally:
            self.reading -= 1


async def test_so_many_read_at_once_and_all_of_them_in_the_end() -> None:
    below = SlowLog()
    log = GatedReads(below, at_once=3)
    execution_id = await start(log)
    await log.append(request(execution_id, note("a")))
    reads = [asyncio.create_task(log.read(None, execution_id, from_version=2)) for _ in range(20)]
    await asyncio.sleep(0)
    reads[0].cancel()  # one that reads
    reads[19].cancel()  # one that waits
    below.proceed.set()

    pages = await asyncio.gather(*reads, return_exceptions=True)

    assert [len(page.events) for page in pages if isinstance(page, EventPage)] == [1] * 18
    assert (below.most, below.reading) == (3, 0)


async def test_whoever_fails_makes_room_for_the_next() -> None:
    below = SlowLog()
    log = GatedReads(below, at_once=1)
    execution_id = await start(log)
    below.proceed.set()
    below.is_away = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await log.read(None, execution_id)
    below.is_away = False

    assert len((await log.read(None, execution_id)).events) == 1
