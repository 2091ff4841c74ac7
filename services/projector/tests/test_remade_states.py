"""What was folded with another registry of upcasters is made again from the log, once, and only when it moves."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from noetl_core.errors import Unavailable
from noetl_core.ports.event_log import EventPage
from noetl_core.ports.projection_store import ProjectedExecution, Written
from noetl_core.surfaces.shapes import Surface
from noetl_core.upcasting.registry import Upcaster, Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_projector.application import read_missing
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

    await Process(log, store, epoch=2, upcasters=WITHOUT_COMMANDS).take(*history.stored[9:])

    assert not store.rows[Surface.COMMANDS]


async def test_a_row_that_does_not_say_its_registry_is_made_again_too() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store).take(*history.stored[:9])
    row = store.executions[EXECUTION]
    store.executions[EXECUTION] = replace(row, view=replace(row.view, upcasters=""))
    now = Process(log, store)

    await now.take(*history.stored[9:])

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
    newer = Process(log, store, epoch=3)
    for version in range(8, 18):
        await newer.take(history.stored[version])
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

    assert remade(now) == 1
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history])


@pytest.mark.parametrize("most", [6, 1000])
async def test_a_history_that_is_too_long_to_be_folded_at_once_is_made_again_in_steps(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 3)
    monkeypatch.setattr(read_missing, "MAX_REMADE_EVENTS", most)
    history = telling_history(choices(3))
    log, store = HistoryLog(history), InMemoryProjections()
    end = len(history.stored)
    assert end > 6
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[: end - 1])
    now = Process(log, store, epoch=2)

    await now.take(history.stored[-1])
    first = now.version()
    await now.compare()

    assert first == min(most, end)
    assert remade(now) == 1
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history])


async def test_a_row_does_not_go_back_because_the_log_went_away_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    now = Process(log, store, epoch=2)
    read = log.read

    async def twice(*args: Any, **kwargs: Any) -> EventPage:
        if len(log.reads) == 2:
            raise Unavailable("api is away")
        return await read(*args, **kwargs)

    monkeypatch.setattr(log, "read", twice)
    await now.take(*history.stored[9:])
    assert (now.version(), remade(now)) == (9, 0)
    monkeypatch.setattr(log, "read", read)
    await now.compare()

    assert remade(now) == 1
    assert rows_of(store) == await straight([history])


async def test_one_that_cannot_be_replaced_in_time_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    history, other = two_steps(History()), two_steps(History(EXECUTION + 64))
    log, store = HistoryLog(history, other), InMemoryProjections()
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:9])
    now = Process(log, store, epoch=2)
    write = store.write

    async def in_time(rows: Sequence[ProjectedExecution]) -> Written:
        if any(row.replaces for row in rows):
            raise Unavailable("canceling statement due to statement timeout")
        return await write(rows)

    monkeypatch.setattr(store, "write", in_time)
    await now.take(*history.stored[9:], *other.stored[:9])
    await now.compare()

    assert (now.version(), remade(now)) == (9, 0)
    assert store.executions[EXECUTION + 64].view.stream_version == len(other.stored)
    monkeypatch.setattr(store, "write", write)
    await now.compare()

    assert remade(now) == 1
    assert not now.troubles.to_retry()
    assert rows_of(store) == await straight([history, other])


async def test_what_is_folded_again_is_no_lag() -> None:
    history = two_steps(History())
    log, store = HistoryLog(history), InMemoryProjections(now=lambda: NOON + timedelta(seconds=61))
    await Process(log, store, upcasters=WITHOUT_COMMANDS).take(*history.stored[:17])
    now = Process(log, store, epoch=2)

    await now.take(history.stored[17])

    shard = str(store.executions[EXECUTION].shard)
    since = (NOON + timedelta(seconds=61) - history.stored[17].ingest_time).total_seconds()
    assert now.metrics.value("noetl_projection_shard_lag_seconds", shard_id=shard) == since < 60
