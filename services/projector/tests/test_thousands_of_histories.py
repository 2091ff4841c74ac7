"""Two thousand histories, delivered as badly as a bus can: live checksums are those of a replay from the start."""

from __future__ import annotations

import random

import pytest
from noetl_core.canonical import decode
from noetl_core.envelope import StoredEvent
from noetl_core.replay.history import Replay
from noetl_core.replay.snapshots import Rules
from noetl_core.sharding import shard_of
from noetl_core.surfaces.checksums import checksum_document
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.upcasting.releases import UPCASTERS
from noetl_projector.application.advance import Wanted
from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.application.compare_heads import CompareHeads
from noetl_projector.application.keep_snapshots import KeepSnapshots
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.project_batch import ProjectBatch
from noetl_projector.application.read_missing import ReadMissing
from noetl_projector.application.store_rows import StoreRows
from noetl_projector.application.troubles import Troubles
from noetl_projector.application.version_signals import VersionSignals
from noetl_projector.telemetry import ProjectorMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import EXECUTION, NOON, History, choices, drawn_history, shuffled_delivery
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.memory.snapshots import InMemorySnapshots
from noetl_testkit.telling_histories import telling_history

HISTORIES = 250
EPOCHS = dict.fromkeys(range(64), 1)


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
    project, compare = _projector(HistoryLog(*histories), store)
    owners = {event: history.execution_id for history in histories for event in history.stored}
    delivered = shuffled_delivery(choose, list(owners))
    while delivered:
        size = choose.choice((10, 100, 400))
        batch, delivered = delivered[:size], delivered[size:]
        grouped: dict[int, list[StoredEvent]] = {}
        for event in batch:
            grouped.setdefault(owners[event], []).append(event)
        await project(
            [Wanted(execution_id=key, shard=shard_of(key, 64), events=tuple(group)) for key, group in grouped.items()]
        )
    await compare()  # what nobody delivered at all


def _projector(log: HistoryLog, store: InMemoryProjections) -> tuple[ProjectBatch, CompareHeads]:
    metrics, known, troubles = ProjectorMetrics(MetricSet()), KnownStates(50), Troubles()
    checkpoints = Checkpoints(store, metrics)
    rows = StoreRows(
        store,
        epoch=EPOCHS.get,
        fenced=lambda shard: None,
        known=known,
        told=VersionSignals(),
        checkpoints=checkpoints,
        barriers=Barriers(store, log, epoch=EPOCHS.get, fenced=lambda shard: None, metrics=metrics),
        snapshots=KeepSnapshots(
            log,
            InMemorySnapshots(),
            Rules(code_version="test"),
            owns=lambda shard: True,
            metrics=metrics,
            interval=10_000,
        ),
        metrics=metrics,
    )
    project = ProjectBatch(
        store,
        ReadMissing(log, store, metrics),
        rows,
        owns=lambda shard: True,
        known=known,
        troubles=troubles,
        metrics=metrics,
        began_at=NOON,
    )
    compare = CompareHeads(
        log, store, project, owned=lambda: EPOCHS, known=known, troubles=troubles, checkpoints=checkpoints
    )
    return project, compare


def _rows_by_execution(store: InMemoryProjections) -> dict[int, dict[Surface, dict[str, Row]]]:
    found: dict[int, dict[Surface, dict[str, Row]]] = {}
    for surface, rows in store.rows.items():
        for (execution_id, key), data in rows.items():
            row = decode(data)
            assert isinstance(row, dict)
            found.setdefault(execution_id, {}).setdefault(surface, {})[key] = row
    return found
