"""A call is not charged for the time in which its rows wait for their takers."""

from __future__ import annotations

import asyncio

import pytest
from noetl_core.canonical import JsonValue
from noetl_worker.tools.streamed_rows import UntimedSink


class SlowTaker:
    chunk_rows = 2

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self.taken: list[list[JsonValue]] = []
        self.limits: list[float | None] = []

    async def put(self, rows: list[JsonValue]) -> None:
        self.limits.append(self._limit.when())
        self.taken.append(rows)


async def test_the_timeout_stands_still_while_a_chunk_waits_and_goes_on_afterwards() -> None:
    async with asyncio.timeout(1000) as limit:
        taker = SlowTaker(limit)
        sink = UntimedSink(taker, limit)
        before = limit.when()
        await sink.put([{"n": 1}, {"n": 2}])
        await sink.put([{"n": 3}])
        after = limit.when()

    assert taker.limits == [None, None]
    assert before is not None
    assert after is not None
    assert after >= before
    assert (sink.row_count, len(taker.taken)) == (3, 2)


async def test_time_that_is_used_up_ends_the_call_at_its_next_step() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000) as limit:
            limit.reschedule(asyncio.get_running_loop().time() - 1)
            await UntimedSink(SlowTaker(limit), limit).put([{"n": 1}])
            await asyncio.sleep(60)
