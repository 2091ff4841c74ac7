"""The limit of a call ends what takes too long, and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from noetl_worker.application.frame_limits import CallLimit


async def test_what_takes_too_long_is_a_timeout_and_the_task_goes_on() -> None:
    with pytest.raises(TimeoutError), CallLimit(0.01) as limit:
        await asyncio.sleep(60)
    assert limit.expired()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_a_limit_that_is_over_ends_the_first_wait(seconds: float) -> None:
    with pytest.raises(TimeoutError), CallLimit(seconds):
        await asyncio.sleep(60)


@pytest.mark.parametrize("seconds", [None, 60.0])
async def test_what_ends_in_time_gives_its_own_end(seconds: float | None) -> None:
    with CallLimit(seconds) as limit:
        await asyncio.sleep(0)
    with pytest.raises(KeyError), CallLimit(seconds):
        raise KeyError("own")
    assert not limit.expired()


async def test_an_error_while_a_call_is_ended_is_what_it_ends_with() -> None:
    with pytest.raises(OSError, match="own"), CallLimit(0.01) as limit:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("own") from None
    assert limit.expired()


async def test_who_is_cancelled_from_outside_is_cancelled_also_where_its_time_is_over() -> None:
    begun = asyncio.Event()

    async def call() -> None:
        with CallLimit(0.01):
            try:
                begun.set()
                await asyncio.sleep(60)
            finally:
                running.cancel()  # both at once

    running = asyncio.create_task(call())
    await begun.wait()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_of_two_limits_the_one_that_is_over_is_told() -> None:
    with CallLimit(60.0) as outer:
        with pytest.raises(TimeoutError), CallLimit(0.01) as inner:
            await asyncio.sleep(60)
        await asyncio.sleep(0)
    assert (outer.expired(), inner.expired()) == (False, True)


async def test_a_limit_can_stand_still() -> None:
    with CallLimit(0.02) as limit:
        when = limit.when()
        assert when is not None
        limit.reschedule(None)
        await asyncio.sleep(0.05)
        limit.reschedule(asyncio.get_running_loop().time() + 60)
        await asyncio.sleep(0)
    assert not limit.expired()
