import asyncio

import pytest
from noetl_core.errors import Corrupt, Unavailable
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.supervision import Backoff, Beat, LoopBody, SupervisedLoop
from noetl_servicekit.telemetry import LoopMetrics
from structlog.testing import capture_logs

AT_ONCE = Backoff(first_seconds=0.0)


def supervised(body: LoopBody, metrics: MetricSet, backoff: Backoff = AT_ONCE) -> SupervisedLoop:
    return SupervisedLoop("drain", body, beat=lambda: None, metrics=LoopMetrics(metrics), backoff=backoff)


async def test_a_loop_that_fails_for_a_passing_reason_is_started_again_and_counted() -> None:
    metrics, stopping = MetricSet(), asyncio.Event()
    rounds = 0

    async def body(beat: Beat) -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 4:
            raise Unavailable("postgres is away")
        stopping.set()

    with capture_logs() as logs:
        await supervised(body, metrics).run(stopping)

    assert metrics.value("noetl_loop_restarts_total", loop="drain") == 3
    assert [(line["event"], line["code"]) for line in logs] == [("loop.restarting", "unavailable")] * 3


@pytest.mark.parametrize("failure", [Corrupt("bytes differ"), ValueError("odd")])
async def test_a_loop_that_fails_for_any_other_reason_is_not_started_again(failure: Exception) -> None:
    metrics = MetricSet()

    async def body(beat: Beat) -> None:
        raise failure

    with pytest.raises(type(failure)):
        await supervised(body, metrics).run(asyncio.Event())

    assert metrics.value("noetl_loop_restarts_total", loop="drain") == 0


async def test_a_loop_that_just_ends_is_a_mistake() -> None:
    async def body(beat: Beat) -> None:
        return

    with pytest.raises(RuntimeError, match="'drain' ended although nobody stopped it"):
        await supervised(body, MetricSet()).run(asyncio.Event())


async def test_stopping_does_not_wait_for_the_next_try() -> None:
    stopping, failed = asyncio.Event(), asyncio.Event()

    async def body(beat: Beat) -> None:
        failed.set()
        raise Unavailable("postgres is away")

    loop = supervised(body, MetricSet(), Backoff(first_seconds=3600, max_seconds=3600))
    running = asyncio.create_task(loop.run(stopping))
    await failed.wait()
    stopping.set()

    async with asyncio.timeout(60):
        await running


def test_the_wait_grows_to_a_limit() -> None:
    backoff = Backoff(first_seconds=0.1, factor=2, max_seconds=10)

    assert [round(backoff.delay(failures), 1) for failures in range(1, 10)] == [
        0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0,
    ]  # fmt: skip
    assert backoff.delay(1_000_000) == 10


async def test_a_loop_that_ran_well_for_a_while_starts_over_with_short_waits() -> None:
    stopping, delays = asyncio.Event(), []
    now = 0.0
    lengths = iter([0, 0, 0, 60, 0])

    async def body(beat: Beat) -> None:
        nonlocal now
        length = next(lengths, None)
        if length is None:
            stopping.set()
            return
        now += length
        raise Unavailable("postgres is away")

    loop = SupervisedLoop(
        "drain",
        body,
        beat=lambda: None,
        metrics=LoopMetrics(MetricSet()),
        backoff=Backoff(first_seconds=0.001, factor=2, max_seconds=1),
        clock=lambda: now,
    )
    with capture_logs() as logs:
        await loop.run(stopping)

    delays = [line["delay_seconds"] for line in logs]
    assert delays == [0.001, 0.002, 0.004, 0.001, 0.002]
