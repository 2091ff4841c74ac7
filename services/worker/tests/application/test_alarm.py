"""One timer for all limits: each rings at its time, whatever the others do."""

from __future__ import annotations

import asyncio
import threading

from noetl_testkit.until import until
from noetl_worker.application.alarm import Alarm, alarm_of


class Sleeper:
    def __init__(self) -> None:
        self.rung: list[float] = []

    def ring(self) -> None:
        self.rung.append(asyncio.get_running_loop().time())


async def test_each_rings_once_and_not_before_its_time_in_whatever_order_they_were_set() -> None:
    loop = asyncio.get_running_loop()
    alarm, now = Alarm(loop), loop.time()
    times = [now + 0.05, now + 0.01, now - 1.0, now + 0.03, now + 600]
    sleepers = [Sleeper() for _ in times]
    for sleeper, when in zip(sleepers, times, strict=True):
        alarm.set(sleeper, when)
    await until(lambda: bool(sleepers[0].rung))

    assert [len(sleeper.rung) for sleeper in sleepers] == [1, 1, 1, 1, 0]
    assert all(sleeper.rung[0] >= when - 0.002 for sleeper, when in zip(sleepers[:4], times[:4], strict=True))


async def test_who_has_cleared_his_is_left_alone_and_the_next_one_still_rings() -> None:
    loop = asyncio.get_running_loop()
    alarm, cleared, put_off, last = Alarm(loop), Sleeper(), Sleeper(), Sleeper()
    alarm.set(cleared, loop.time() + 0.01)
    alarm.set(put_off, loop.time() + 0.01)
    alarm.set(last, loop.time() + 0.03)
    alarm.clear(cleared)
    alarm.set(put_off, loop.time() + 600)
    await until(lambda: bool(last.rung))

    assert (cleared.rung, put_off.rung) == ([], [])


async def test_after_all_have_gone_another_one_can_come() -> None:
    loop = asyncio.get_running_loop()
    alarm, first, second = Alarm(loop), Sleeper(), Sleeper()
    alarm.set(first, loop.time() + 600)
    alarm.clear(first)
    alarm.set(second, loop.time() + 0.01)
    await until(lambda: bool(second.rung))

    assert first.rung == []


async def test_a_loop_has_one_and_the_loop_of_another_thread_another() -> None:
    ours = alarm_of(asyncio.get_running_loop())
    theirs: list[Alarm] = []

    async def other() -> None:
        theirs.append(alarm_of(asyncio.get_running_loop()))

    thread = threading.Thread(target=asyncio.run, args=(other(),))
    thread.start()
    await asyncio.to_thread(thread.join)

    assert alarm_of(asyncio.get_running_loop()) is ours
    assert theirs[0] is not ours
