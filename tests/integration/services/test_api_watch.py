from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import pytest
from noetl_core.append import END_KEY
from noetl_core.envelope import Draft
from noetl_core.errors import NotFound, Unavailable
from noetl_testkit.compliance.event_log import chain_holds, new_id, note, request, start
from noetl_testkit.until import until

END = Draft(event_type="playbook.completed", idempotency_key=END_KEY)


async def test_watch_shows_what_is_there_then_what_comes_and_ends_with_the_execution(api: Any) -> None:
    log = (await api.as_("service")).events
    execution_id = await start(log)
    seen: asyncio.Queue[Any] = asyncio.Queue()

    async def follow() -> None:
        async for batch in (await api.as_("rita")).events.watch(None, execution_id, timeout=60):
            await seen.put(batch)

    following = asyncio.create_task(follow())
    first = await seen.get()
    await log.append(request(execution_id, note("a"), note("b")))
    second = await seen.get()
    await log.append(request(execution_id, END))
    last = await seen.get()
    await following

    assert [event.stream_version for batch in (first, second, last) for event in batch.events] == [1, 2, 3, 4]
    assert [batch.terminal for batch in (first, second, last)] == [False, False, True]


async def test_watch_of_an_ended_execution_ends_at_once(api: Any) -> None:
    log = (await api.as_("service")).events
    execution_id = await start(log)
    await log.append(request(execution_id, END))

    whole = [batch async for batch in log.watch(None, execution_id, timeout=60)]
    nothing = [batch async for batch in log.watch(None, execution_id, from_version=3, timeout=60)]

    assert [len(batch.events) for batch in whole] == [2]
    assert whole[-1].terminal
    assert [(batch.events, batch.terminal) for batch in nothing] == [((), True)]


@pytest.mark.alone
async def test_watch_is_woken_by_the_commits_of_another_replica(run_api: Any) -> None:
    async with run_api() as here, run_api() as there:
        log = (await there.as_("service")).events
        execution_id = await start(log)
        watching = (await here.as_("service")).events.watch(None, execution_id, timeout=60)
        await anext(watching)
        delays = []
        for number in range(5):
            began_at = time.monotonic()
            await log.append(request(execution_id, note(f"k{number}")))
            await anext(watching)
            delays.append(time.monotonic() - began_at)
        await watching.aclose()

    # The safety net would take five seconds, every time; a commit that wakes takes milliseconds on a quiet machine.
    assert statistics.median(delays) < 2.0


async def test_a_long_history_is_caught_up_without_a_gap(api: Any) -> None:
    log = (await api.as_("service")).events
    execution_id = await start(log)
    await log.append(request(execution_id, *(note(f"k{n}") for n in range(999))))
    events: list[Any] = []

    async def follow() -> None:
        async for batch in log.watch(None, execution_id, timeout=60):
            events.extend(batch.events)

    following = asyncio.create_task(follow())
    for part in range(10):
        await asyncio.gather(*(log.append(request(execution_id, note(f"{part}/{n}"))) for n in range(20)))
    await log.append(request(execution_id, END))
    await following

    assert len(events) == 1201
    assert chain_holds(tuple(events))


async def test_followers_are_sent_away_when_a_replica_stops(api: Any) -> None:
    execution_id = await start((await api.as_("service")).events)
    watching = (await api.as_("service")).events.watch(None, execution_id, timeout=60)
    await anext(watching)
    following = asyncio.create_task(anext(watching))
    await until(lambda: api.group.metrics.value("noetl_api_watchers") == 1)

    await api.stop()

    with pytest.raises(Unavailable):
        await following


async def test_an_execution_that_is_not_there_cannot_be_watched(api: Any) -> None:
    with pytest.raises(NotFound):
        await anext((await api.as_("service")).events.watch(None, new_id(), timeout=60))
