from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from noetl_api.application.notice_starts import MAX_TOLD_BYTES, MAX_UNDER_WAY, NoticeStarts
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Unavailable
from noetl_testkit.until import until

FIRST = StoredEvent(
    body=b"{}", stream_version=1, aggregate_version=1, ingest_time=datetime.now(UTC), prev_checksum="", checksum="c"
)


class Planner:
    """Remembers what it is told; away or slow if told so."""

    def __init__(self) -> None:
        self.told: list[tuple[int, tuple[StoredEvent, ...], bytes]] = []
        self.asked = 0
        self.away = False
        self.open = asyncio.Event()
        self.open.set()

    async def notice(self, execution_id: int, events: Sequence[StoredEvent], *, workload: bytes = b"") -> None:
        self.asked += 1
        await self.open.wait()
        if self.away:
            raise Unavailable("nobody plans this shard")
        self.told.append((execution_id, tuple(events), workload))


async def test_the_planner_is_told_of_a_start() -> None:
    planner = Planner()
    notice = NoticeStarts(planner)

    notice(7, FIRST, b"{}")
    await until(lambda: planner.told, seconds=30)

    assert planner.told == [(7, (FIRST,), b"{}")]
    await notice.close()


async def test_many_variables_are_left_to_the_store() -> None:
    planner = Planner()
    notice = NoticeStarts(planner)

    notice(7, FIRST, b"x" * (MAX_TOLD_BYTES + 1))
    await until(lambda: planner.told, seconds=30)

    assert planner.told == [(7, (FIRST,), b"")]
    await notice.close()


async def test_a_planner_that_is_away_is_nobodys_trouble() -> None:
    planner = Planner()
    planner.away = True
    notice = NoticeStarts(planner)

    notice(7, FIRST, b"{}")
    await until(lambda: planner.asked == 1, seconds=30)
    planner.away = False
    notice(8, FIRST, b"{}")
    await until(lambda: planner.told, seconds=30)

    assert planner.told == [(8, (FIRST,), b"{}")]
    await notice.close()


async def test_a_slow_planner_does_not_pile_up_notices() -> None:
    planner = Planner()
    planner.open.clear()
    notice = NoticeStarts(planner)

    for execution_id in range(1, MAX_UNDER_WAY + 50):
        notice(execution_id, FIRST, b"{}")
    await until(lambda: planner.asked == MAX_UNDER_WAY, seconds=30)
    await notice.close()

    assert planner.told == []
