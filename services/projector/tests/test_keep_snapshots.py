"""Snapshots of long histories: when they are made, from what, and what becomes of those that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_core.envelope import Draft
from noetl_core.errors import Unavailable
from noetl_core.fold import empty, fold_all
from noetl_core.ports.event_log import EventPage
from noetl_core.replay.history import Replay
from noetl_core.replay.sizes import MOST_IN_ONE_PIECE
from noetl_core.replay.snapshots import Rules, open_snapshot, take_snapshot
from noetl_core.sharding import shard_of
from noetl_core.values import replace
from noetl_projector.application.keep_snapshots import KeepSnapshots
from noetl_projector.telemetry import ProjectorMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import EXECUTION, History, initialized, issued
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.snapshots import InMemorySnapshots

RULES = Rules(code_version="test")
SHARD = shard_of(EXECUTION, 64)


class Scene:
    def __init__(self, **options: Any) -> None:
        self.history = History().add(initialized())
        self.log = HistoryLog(self.history)
        self.store = InMemorySnapshots()
        self.metrics = MetricSet()
        self.owned = {SHARD}
        self.keep = KeepSnapshots(
            self.log,
            self.store,
            RULES,
            owns=lambda shard: shard in self.owned,
            metrics=ProjectorMetrics(self.metrics),
            interval=10,
            **options,
        )

    async def reach(self, version: int) -> None:
        """More events, which are projected."""
        first = len(self.history.stored)
        self.history.add(
            *(Draft(event_type="note", idempotency_key=f"note/{place}") for place in range(first, version))
        )
        state = fold_all(empty(EXECUTION), self.history.recorded)
        self.keep.moved(state, shard=SHARD)
        await self.keep.make_due()

    @property
    def positions(self) -> list[int]:
        return sorted(position for _, position in self.store.stored)

    def is_right(self, position: int) -> bool:
        replay = Replay(EXECUTION)
        replay.take(self.history.stored[:position])
        return self.store.stored[EXECUTION, position] == take_snapshot(replay.result(), code_version="test")


async def test_a_snapshot_is_made_at_each_multiple_and_goes_on_from_the_one_before() -> None:
    scene = Scene()
    await scene.reach(9)
    assert scene.positions == []
    for version in (12, 19, 20, 31):
        await scene.reach(version)

    assert scene.positions == [20, 30]
    assert all(map(scene.is_right, scene.positions))
    assert scene.metrics.value("noetl_projector_snapshots_total") == 3
    assert scene.log.reads[-1] == (EXECUTION, 21, 30)


async def test_what_is_there_is_not_made_again_by_whoever_comes_next() -> None:
    scene = Scene()
    await scene.reach(15)
    other = KeepSnapshots(
        scene.log,
        scene.store,
        RULES,
        owns=lambda shard: True,
        metrics=ProjectorMetrics(MetricSet()),
        interval=10,
    )
    before = len(scene.log.reads)

    other.moved(fold_all(empty(EXECUTION), scene.history.recorded), shard=SHARD)
    await other.make_due()

    assert scene.positions == [10]
    assert scene.log.reads[before:] == [(EXECUTION, 10, 10)]  # only its last event, by which it is proven


async def test_one_that_is_not_what_it_says_or_not_of_this_log_is_dropped_and_made_anew_from_the_start() -> None:
    for spoil in ("body", "log"):
        scene = Scene()
        await scene.reach(15)
        snapshot, parts = scene.store.stored[EXECUTION, 10]
        if spoil == "body":
            scene.store.stored[EXECUTION, 10] = (snapshot, [parts[0][:-1]])
        else:
            forged = replace(snapshot, event_checksum="0" * 64)
            scene.store.stored[EXECUTION, 10] = (replace(forged, checksum=forged.sealed()), parts)

        await scene.reach(20)

        assert scene.positions == [20]
        assert scene.is_right(20)


@pytest.mark.parametrize("bound", ["rows", "attribute_bytes"])
async def test_shards_of_others_and_histories_that_are_too_large_are_left_alone(bound: str) -> None:
    scene = Scene(most=replace(MOST_IN_ONE_PIECE, **{bound: 1}))
    told = {"type": "order", "id": "7", "state": {"total": 1}}
    scene.history.add(Draft(event_type="order.made", idempotency_key="made", meta={"business_object": told}))
    for number in range(2):
        command = issued(scene.history, f"step-{number}")
        scene.history.add(command)
    await scene.reach(15)
    assert scene.positions == []

    lost = Scene()
    lost.owned.clear()
    await lost.reach(15)
    assert lost.positions == []


async def test_while_the_log_is_away_nothing_is_lost() -> None:
    scene = Scene()
    scene.log.failure = Unavailable("api is away")
    with pytest.raises(Unavailable):
        await scene.reach(15)
    scene.log.failure = None

    await scene.keep.make_due()

    assert scene.positions == [10]
    snapshot, parts = scene.store.stored[EXECUTION, 10]
    assert open_snapshot(snapshot, parts, execution_id=EXECUTION, rules=RULES).state.stream_version == 10


async def test_a_history_with_a_hole_is_given_up_and_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    read = scene.log.read
    pages = 0

    async def read_without_one(*arguments: Any, **options: Any) -> EventPage:
        nonlocal pages
        pages += 1
        assert pages < 10, "the same page is read for ever"
        page = await read(*arguments, **options)
        return replace(page, events=tuple(event for event in page.events if event.stream_version != 7))

    with monkeypatch.context() as patch:
        patch.setattr(scene.log, "read", read_without_one)
        await scene.reach(15)
    assert scene.positions == []

    await scene.reach(25)
    assert scene.positions == [20]
