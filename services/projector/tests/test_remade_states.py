"""What was folded with another registry of upcasters is made again from the log, once, and only when it moves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from noetl_core.children.events import ExecutionCascaded
from noetl_core.errors import Unavailable
from noetl_core.ports.event_log import EventPage
from noetl_core.ports.projection_store import ProjectedExecution, Written
from noetl_core.surfaces.shapes import Surface
from noetl_core.upcasting.registry import Upcaster, Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_projector.application import read_missing, remake_rows
from noetl_projector.application.remake_rows import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from noetl_testkit.histories import EXECUTION, NOON, History, choices, two_steps
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.projecting import BEFORE, Process, rows_of, straight
from noetl_testkit.telling_histories import telling_history

WITHOUT_COMMANDS = Upcasters(
    [
        Upcaster(
            event_type="command.issued",
            from_version=1,
            to_version=2,
            change=lambda envelope: envelope,
            to_type="nobody.knows",
        )
    ]
)
"""Reads histories otherwise, so that what was folded with it is not what this release folds."""


def remade(one: Process, reason: str = "registry") -> float:
    return one.metrics.value("noetl_projector_states_remade_total", reason=reason) or 0.0


async def test_a_state_of_another_registry_is_made_again_once_and_then_kept() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    assert store.executions[EXECUTION].view.upcasters == WITHOUT_COMMANDS.digest
    assert not store.rows[Surface.COMMANDS]
    now = Process(log, store, capacity=0)

    await now.take(*history.stored[9:12])
    await now.remake()
    await now.take(*history.stored[12:])

    assert log.reads == [(EXECUTION, 1, 12)]
    assert remade(now) == 1
    assert rows_of(store) == await straight([history])
    assert store.executions[EXECUTION].view.upcasters == UPCASTERS.digest


async def test_rows_that_the_log_no_longer_gives_are_gone() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store).take(*history.stored[:9])
    assert store.rows[Surface.COMMANDS]

    other = Process(log, store, epoch=2, upcasters=WITHOUT_COMMANDS)
    await other.take(*history.stored[9:])
    await other.remake()

    assert not store.rows[Surface.COMMANDS]


async def test_a_row_that_does_not_say_its_registry_is_made_again_too() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store).take(*history.stored[:9])
    row = store.executions[EXECUTION]
    store.executions[EXECUTION] = replace(row, view=replace(row.view, upcasters=""))
    now = Process(log, store)

    await now.take(*history.stored[9:])
    await now.remake()

    assert remade(now) == 1
    assert rows_of(store) == await straight([history])


async def test_what_does_not_move_keeps_its_row() -> None:
    """An upgrade is no reason to read all that ever ran."""
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored)
    now = Process(log, store, epoch=2)

    await now.compare()
    await now.take(*history.stored[12:])

    assert log.reads == []
    assert store.writes == 1
    assert remade(now) == 0
    assert store.executions[EXECUTION].view.upcasters == WITHOUT_COMMANDS.digest


async def test_a_shard_that_moves_back_and_forth_costs_one_fold_a_move() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, epoch=1).take(*history.stored[:3])
    older = Process(log, store, epoch=2, upcasters=WITHOUT_COMMANDS)
    for version in range(3, 8):
        await older.take(history.stored[version])
        await older.remake()
    newer = Process(log, store, epoch=3)
    for version in range(8, 18):
        await newer.take(history.stored[version])
        await newer.remake()
    await older.take(*history.stored)  # deposed, and does not know it

    assert (remade(older), remade(newer)) == (1, 1)
    assert log.reads == [(EXECUTION, 1, 4), (EXECUTION, 1, 9)]
    assert rows_of(store) == await straight([history])


async def test_a_row_that_nobody_looked_for_is_not_written_over_by_another_registry() -> None:
    """Its first event is so new that no row is expected; there is one all the same, by other rules."""
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    now = Process(log, store, epoch=2, began_at=BEFORE)

    await now.take(*history.stored)
    assert now.version() == 9
    await now.compare()
    await now.remake()

    assert remade(now) == 1
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history])


async def test_what_has_ended_is_never_seen_running_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its history is made again in several steps, of which nobody sees any but the last."""
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 3)
    history = two_steps(History())
    history.add(ExecutionCascaded())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:-1])
    assert store.executions[EXECUTION].view.status == "COMPLETED"
    now = Process(log, store, epoch=2)
    seen: set[tuple[str, int]] = set()
    read = log.read

    async def watched(*args: Any, **kwargs: Any) -> EventPage:
        view = store.executions[EXECUTION].view
        seen.add((view.status, view.stream_version))
        return await read(*args, **kwargs)

    monkeypatch.setattr(log, "read", watched)
    await now.take(history.stored[-1])
    await now.remake()

    assert len(log.reads) == 7
    assert seen == {("COMPLETED", 18)}
    assert (remade(now), now.version()) == (1, 19)
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history])


@pytest.mark.parametrize("seed", range(3, 9))
async def test_a_history_that_is_too_long_to_be_folded_at_once_is_made_again_in_steps(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 3)
    monkeypatch.setattr(remake_rows, "SHORT_EVENTS", 6)
    history = telling_history(choices(seed))
    log, store = HistoryLog(history), InMemoryProjections()
    end = len(history.stored)
    assert end > 7
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[: end - 1])
    now = Process(log, store, epoch=2)

    await now.take(history.stored[-1])
    await now.remakes.make_due(is_long=False)
    assert (remade(now), now.metrics.value("noetl_projector_states_to_remake")) == (0, 1)
    await now.remakes.make_due(is_long=True)

    assert (remade(now), now.metrics.value("noetl_projector_states_to_remake")) == (1, 0)
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history])


async def test_what_moves_on_while_it_waits_is_made_again_up_to_there() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    now = Process(log, store, epoch=2)

    await now.take(history.stored[9])
    await now.take(*history.stored[10:])
    await now.compare()
    await now.remake()

    assert log.reads == [(EXECUTION, 1, 18)]
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history])


async def test_a_row_does_not_go_back_because_the_log_went_away_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    before = rows_of(store)
    now = Process(log, store, epoch=2)
    read = log.read

    async def twice(*args: Any, **kwargs: Any) -> EventPage:
        if len(log.reads) == 2:
            raise Unavailable("api is away")
        return await read(*args, **kwargs)

    monkeypatch.setattr(log, "read", twice)
    await now.take(*history.stored[9:])
    await now.remake()
    assert (rows_of(store), remade(now)) == (before, 0)
    monkeypatch.setattr(log, "read", read)
    now.now += FIRST_PAUSE_SECONDS
    await now.remake()

    assert remade(now) == 1
    assert rows_of(store) == await straight([history])


async def test_a_shard_that_is_lost_half_way_keeps_the_rows_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 3)
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    before = rows_of(store)
    now = Process(log, store, epoch=2)
    read = log.read

    async def lost(*args: Any, **kwargs: Any) -> EventPage:
        if len(log.reads) == 2:
            now.lose(store.executions[EXECUTION].shard)
        return await read(*args, **kwargs)

    monkeypatch.setattr(log, "read", lost)
    await now.take(*history.stored[9:])
    await now.remake()

    assert rows_of(store) == before
    assert EXECUTION not in now.remakes


async def test_those_that_cannot_be_replaced_in_time_hold_up_nobody_and_are_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = [two_steps(History(EXECUTION + 64 * number)) for number in range(5)]
    other, missed = two_steps(History(EXECUTION + 64 * 9)), two_steps(History(EXECUTION + 64 * 10))
    log, store = HistoryLog(*slow, other, missed), InMemoryProjections()
    before = Process(log, store, upcasters=WITHOUT_COMMANDS)
    for history in (*slow, other):
        await before.take(*history.stored[:9], execution_id=history.execution_id)
    now = Process(log, store, epoch=2)
    attempts: list[float] = []
    too_many = {history.execution_id for history in slow}
    together = store.together

    @asynccontextmanager
    async def in_time() -> AsyncIterator[InMemoryProjections]:
        async with together() as aside:
            write = aside.write

            async def removes(rows: Sequence[ProjectedExecution]) -> Written:
                if rows[0].state.execution.execution_id in too_many:
                    attempts.append(now.now)
                    raise Unavailable("canceling statement due to statement timeout")
                return await write(rows)

            monkeypatch.setattr(aside, "write", removes)
            yield aside

    monkeypatch.setattr(store, "together", in_time)
    for history in (*slow, other):
        await now.take(history.stored[9], execution_id=history.execution_id)
    await now.compare()
    for second in range(120):
        now.now = float(second)
        await now.remake()

    assert now.version(missed.execution_id) == len(missed.stored)
    assert now.version(other.execution_id) == len(other.stored)
    assert len(attempts) == 6 * len(slow)  # each after 3, 6, 12, 24 and 48 s, at least
    too_many.clear()
    now.now += LONGEST_PAUSE_SECONDS
    await now.remake()
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([*slow, other, missed])


async def test_one_that_cannot_be_stored_is_set_aside_with_the_rows_it_had() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    before = rows_of(store)
    store.unholdable.add(EXECUTION)
    now = Process(log, store, epoch=2)

    await now.take(*history.stored[9:])
    for second in (0, 60, 120):
        now.now = float(second)
        await now.remake()

    assert now.troubles.is_quarantined(EXECUTION)
    assert EXECUTION not in now.remakes
    assert rows_of(store) == before


async def test_what_is_folded_again_is_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 5)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 5)
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections(now=lambda: NOON + timedelta(seconds=61))
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:17])
    now = Process(log, store, epoch=2)

    await now.take(history.stored[17])
    await now.remake()

    shard = str(store.executions[EXECUTION].shard)
    since = (NOON + timedelta(seconds=61) - history.stored[17].ingest_time).total_seconds()
    assert now.metrics.value("noetl_projection_shard_lag_seconds", shard_id=shard) == since < 60
