"""Two thousand histories, delivered as badly as a bus can: live checksums are those of a replay from the start."""

from __future__ import annotations

import random

import pytest
from noetl_core.canonical import decode
from noetl_core.envelope import StoredEvent
from noetl_core.replay.history import Replay
from noetl_core.sharding import shard_of
from noetl_core.surfaces.checksums import checksum_document
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.upcasting.releases import UPCASTERS
from noetl_projector.application.advance import Wanted
from noetl_testkit.histories import EXECUTION, NOON, History, choices, drawn_history, shuffled_delivery
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.projecting import Process
from noetl_testkit.telling_histories import telling_history

HISTORIES = 250


@pytest.mark.parametrize("seed", range(8))
async def test_doubled_reordered_and_lost_deliveries_leave_the_checksums_of_a_replay(seed: int) -> None:
    choose = choices(seed)
    histories = [_drawn(choose, EXECUTION + place) for place in range(HISTORIES)]
    store = InMemoryProjections()

    await _project(choose, histories, store)

    rows = _rows_by_execution(store)
    for history in histories:
        replay = Replay(history.execution_id)
        replay.take(history.stored)
        live = checksum_document(
            rows[history.execution_id],
            execution_id=history.execution_id,
            stream_version=store.executions[history.execution_id].view.stream_version,
            upcasters=UPCASTERS.digest,
        )
        assert live == replay.result().checksums()


def _drawn(choose: random.Random, execution_id: int) -> History:
    if choose.random() < 0.2:
        return telling_history(choose, execution_id=execution_id)
    return drawn_history(choose, execution_id=execution_id, moves=choose.randint(0, 6))


async def _project(choose: random.Random, histories: list[History], store: InMemoryProjections) -> None:
    process = Process(HistoryLog(*histories), store, capacity=50, began_at=NOON)
    owners = {event: history.execution_id for history in histories for event in history.stored}
    delivered = shuffled_delivery(choose, list(owners))
    while delivered:
        size = choose.choice((10, 100, 400))
        batch, delivered = delivered[:size], delivered[size:]
        grouped: dict[int, list[StoredEvent]] = {}
        for event in batch:
            grouped.setdefault(owners[event], []).append(event)
        await process.project(
            [Wanted(execution_id=key, shard=shard_of(key, 64), events=tuple(group)) for key, group in grouped.items()]
        )
    await process.compare()  # what nobody delivered at all


def _rows_by_execution(store: InMemoryProjections) -> dict[int, dict[Surface, dict[str, Row]]]:
    found: dict[int, dict[Surface, dict[str, Row]]] = {}
    for surface, rows in store.rows.items():
        for (execution_id, key), data in rows.items():
            row = decode(data)
            assert isinstance(row, dict)
            found.setdefault(execution_id, {}).setdefault(surface, {})[key] = row
    return found
