"""A long history that is to be caught up with leaves everything else its turn."""

import asyncio
from contextlib import suppress

import pytest
from noetl_projector.application import compare_heads, read_missing
from noetl_projector.application.compare_heads import BATCHES_A_TURN
from noetl_projector.entrypoints.head_comparison import compare_regularly
from noetl_testkit.histories import EXECUTION, History, choices, two_steps
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.projecting import Process, rows_of, straight
from noetl_testkit.telling_histories import telling_history
from noetl_testkit.until import until


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 1)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 2)


def process(*histories: History) -> Process:
    return Process(HistoryLog(*histories), InMemoryProjections())


async def test_a_comparison_ends_before_a_long_history_does_and_the_next_turn_goes_on_with_it() -> None:
    history = two_steps(History())
    one = process(history)
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    await one.compare(beat=beat)

    assert one.version() == 2 * BATCHES_A_TURN < len(history.stored)
    assert beats == BATCHES_A_TURN
    turns = 1
    while one.compare.has_more:
        turns += 1
        await one.compare.go_on(beat=beat)
    assert turns > 1
    assert beats == len(history.stored) / 2
    assert not one.troubles.to_retry()
    assert rows_of(one.store) == await straight([history])


async def test_of_many_long_histories_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_heads, "EXECUTIONS_A_BATCH", 2)
    histories = [telling_history(choices(number), execution_id=EXECUTION + number) for number in range(5)]
    one = process(*histories)

    await one.compare()
    await one.compare()
    assert {one.version(history.execution_id) for history in histories} == {2 * BATCHES_A_TURN}
    for _ in range(3):
        await one.compare.go_on()

    assert min(one.version(history.execution_id) for history in histories) == 4 * BATCHES_A_TURN
    while one.compare.has_more:
        await one.compare.go_on()
    assert rows_of(one.store) == await straight(histories)


async def test_a_long_history_does_not_wait_for_the_next_comparison() -> None:
    history = two_steps(History())
    one = process(history)
    task = asyncio.create_task(
        compare_regularly(
            one.compare,
            every_seconds=3600.0,
            away_every_seconds=3600.0,
            bus_is_away=lambda: True,
            hurry=asyncio.Event(),
            beat=lambda: None,
        )
    )

    await until(lambda: one.version() == len(history.stored), seconds=10)

    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
