"""Replays and snapshots: with a right one they are sooner done, with a wrong one they are as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from noetl_api.application import replay_histories
from noetl_api.application.replay_histories import CONCURRENT, MOST_KEPT, ReplayHistories
from noetl_api.application.replay_seeds import ReplaySeeds
from noetl_api.telemetry import ReplayMetrics
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, NoetlError, TooLargeToReplay, Unavailable
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.replay.history import Replay, Replayed
from noetl_core.replay.sizes import Size
from noetl_core.replay.snapshots import Rules, Snapshot, take_snapshot
from noetl_core.surfaces.shapes import Surface
from noetl_core.values import replace
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import EXECUTION, History, choices
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.telling_histories import telling_history

RULES = Rules(code_version="1.0+abc")
POSITION = 20


def replayed(history: History, *, through: int | None = None) -> Replayed:
    replay = Replay(history.execution_id)
    replay.take(history.stored[:through])
    return replay.result()


def taken(history: History, *, through: int = POSITION) -> tuple[Snapshot, list[bytes]]:
    return take_snapshot(replayed(history, through=through), code_version=RULES.code_version)


def resealed(forged: Snapshot) -> Snapshot:
    """As somebody would who knows how."""
    return replace(forged, checksum=forged.sealed())


class World:
    """One history, and whatever somebody has put where snapshots are kept."""

    def __init__(self, **limits: Size) -> None:
        self.history = telling_history(choices(11))
        self.log = HistoryLog(self.history)
        self.kept: tuple[Snapshot, list[bytes]] | None = taken(self.history)
        self.failure: NoetlError | None = None
        self.metrics = MetricSet()
        metrics = ReplayMetrics(self.metrics)
        seeds = ReplaySeeds(self, RULES, metrics=metrics, worth_asking=10)
        self.histories = ReplayHistories(self.log, seeds, metrics=metrics, **limits)
        self.whole = replayed(self.history)

    async def fetch(
        self, scope: Scope | None, execution_id: int, *, at_or_below: int, rules: Rules
    ) -> tuple[Snapshot, list[bytes]] | None:
        if self.failure is not None:
            raise self.failure
        return self.kept

    async def shows_the_same(self, *, from_start: bool = False) -> int:
        """Whether a replay says what a fold of everything says; where it began."""
        known = await self.histories(None, EXECUTION, len(self.history.stored), from_start=from_start)
        assert known.replayed.rows == self.whole.rows
        assert known.checksums == self.whole.checksums()["surfaces"]
        assert known.payload_root == self.whole.payloads.root()
        return known.snapshot_version

    def refused(self, reason: str) -> float:
        return self.metrics.value("noetl_api_snapshots_refused_total", reason=reason)


async def test_a_replay_begins_at_a_snapshot_and_says_so() -> None:
    world = World()

    assert await world.shows_the_same() == POSITION
    # One read proves its last event, the other goes on from there.
    assert world.log.reads == [(EXECUTION, POSITION, POSITION), (EXECUTION, POSITION + 1, len(world.history.stored))]
    assert world.metrics.value("noetl_api_replays_total", began_at="snapshot") == 1


async def test_who_wants_proof_gets_a_replay_of_every_event() -> None:
    world = World()
    assert await world.shows_the_same() == POSITION

    assert await world.shows_the_same(from_start=True) == 0


async def test_a_point_before_the_snapshot_is_replayed_from_the_start() -> None:
    world = World()

    known = await world.histories(None, EXECUTION, POSITION - 1)

    assert known.snapshot_version == 0
    assert known.replayed.rows == replayed(world.history, through=POSITION - 1).rows


@pytest.mark.parametrize("behind", [0, 2, 5, 20])
@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("bound", ["rows", "payloads", "attribute_bytes"])
async def test_how_large_a_state_may_be_does_not_depend_on_where_its_replay_began(
    behind: int, from_start: bool, bound: str
) -> None:
    size = World().whole.size
    fewer = {bound: getattr(size, bound) - 1}
    enough, short = World(most=size), World(most=replace(size, **fewer))
    for world in (enough, short):
        world.kept = taken(world.history, through=len(world.history.stored) - behind)

    assert await enough.shows_the_same(from_start=from_start) == (
        0 if from_start else len(enough.history.stored) - behind
    )
    with pytest.raises(TooLargeToReplay, match=f"more than {fewer[bound]} {bound.rsplit('_', maxsplit=1)[-1]}"):
        await short.shows_the_same(from_start=from_start)


async def test_the_snapshot_s_own_position_needs_no_event_more() -> None:
    world = World()

    known = await world.histories(None, EXECUTION, POSITION)

    assert known.snapshot_version == POSITION
    assert known.replayed.rows == replayed(world.history, through=POSITION).rows
    assert known.replayed.checksum == world.history.stored[POSITION - 1].checksum


async def test_a_replay_that_is_remembered_from_the_start_begins_with_a_snapshot_that_was_made_since() -> None:
    world = World()
    made, world.kept = world.kept, None

    first = await world.histories(None, EXECUTION, POSITION, look_again=True)
    again = await world.histories(None, EXECUTION, POSITION, look_again=True)
    assert (first.snapshot_version, again is first) == (0, True)
    assert world.metrics.value("noetl_api_replays_total", began_at="start") == 1

    world.kept = made
    assert await world.histories(None, EXECUTION, POSITION) is first, "pages after the first ask nobody"
    shortened = await world.histories(None, EXECUTION, POSITION, look_again=True)
    assert shortened.snapshot_version == POSITION
    assert shortened.replayed.rows == first.replayed.rows

    assert await world.histories(None, EXECUTION, POSITION, look_again=True) is shortened
    assert (await world.histories(None, EXECUTION, POSITION, from_start=True, look_again=True)).snapshot_version == 0


async def test_a_replay_that_is_remembered_from_a_snapshot_begins_with_a_newer_one_that_was_made_since() -> None:
    world = World()
    head = len(world.history.stored)
    first = await world.histories(None, EXECUTION, head, look_again=True)

    world.kept = taken(world.history, through=POSITION + 3)
    again = await world.histories(None, EXECUTION, head, look_again=True)

    assert (first.snapshot_version, again.snapshot_version) == (POSITION, POSITION + 3)
    assert again.checksum == first.checksum


async def test_a_replay_that_is_remembered_from_a_snapshot_is_forgotten_if_another_was_put_in_its_place() -> None:
    """At the same position, under the same event, sealed by somebody who knows how."""
    world = World()
    first = await world.histories(None, EXECUTION, POSITION, look_again=True)
    full = replayed(world.history, through=POSITION)
    world.kept = take_snapshot(replace(full, rows={**full.rows, Surface.STAGES: {}}), code_version=RULES.code_version)

    again = await world.histories(None, EXECUTION, POSITION, look_again=True)

    assert again.snapshot_version == POSITION
    assert again.checksum != first.checksum


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_replay_that_is_remembered_from_a_snapshot_is_forgotten_if_that_cannot_be_opened_any_more(
    is_damaged: bool,
) -> None:
    world = World()
    head = len(world.history.stored)
    first = await world.histories(None, EXECUTION, head, look_again=True)

    world.kept = _touched(world) if is_damaged else None
    next_page = await world.histories(None, EXECUTION, head)
    again = await world.histories(None, EXECUTION, head, look_again=True)

    assert (first.snapshot_version, again.snapshot_version) == (POSITION, 0)
    assert next_page is first
    assert again.checksum == first.checksum
    assert await world.histories(None, EXECUTION, head) is again


@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("look_again", [False, True])
async def test_what_is_remembered_of_events_that_a_failover_has_lost_is_forgotten(
    from_start: bool, look_again: bool
) -> None:
    world = World()
    world.kept = None
    lost = await world.histories(None, EXECUTION, POSITION, from_start=from_start, look_again=True)
    other = telling_history(choices(13))
    world.log.add(other)

    known = await world.histories(None, EXECUTION, POSITION, from_start=from_start, look_again=look_again)

    assert lost.replayed.checksum == world.history.stored[POSITION - 1].checksum
    assert known.replayed.checksum == other.stored[POSITION - 1].checksum
    assert known.replayed.rows == replayed(other, through=POSITION).rows


async def test_who_wants_proof_is_told_of_an_event_that_was_changed_since_somebody_else_wanted_it() -> None:
    world = World()
    head = len(world.history.stored)
    await world.histories(None, EXECUTION, head, from_start=True, look_again=True)
    event = world.history.stored[5]
    world.history.stored[5] = event._replace(body=event.body + b" ")

    with pytest.raises(Corrupt, match="version 6"):
        await world.histories(None, EXECUTION, head, from_start=True, look_again=True)


async def test_who_wants_proof_is_told_of_an_event_that_was_removed_since_somebody_else_wanted_it() -> None:
    world = World()
    head = len(world.history.stored)
    await world.histories(None, EXECUTION, head, from_start=True, look_again=True)
    whole = world.log.read

    async def without_the_sixth(*where: Any, **named: Any) -> EventPage:
        page = await whole(*where, **named)
        return replace(page, events=tuple(event for event in page.events if event.stream_version != 6))

    world.log.read = without_the_sixth  # type: ignore[method-assign]

    with pytest.raises(Corrupt, match="no event at version 6"):
        async with asyncio.timeout(5):
            await world.histories(None, EXECUTION, head, from_start=True, look_again=True)


async def test_pages_after_the_first_take_the_proof_that_the_first_has_made_and_read_one_event() -> None:
    world = World()
    head = len(world.history.stored)
    first = await world.histories(None, EXECUTION, head, from_start=True, look_again=True)
    world.log.reads.clear()

    assert await world.histories(None, EXECUTION, head, from_start=True) is first
    assert world.log.reads == [(EXECUTION, head, head)]


@pytest.mark.parametrize("bound", ["rows", "payloads", "attribute_bytes"])
async def test_the_oldest_is_forgotten_when_all_that_is_remembered_is_too_much(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    head = len(world.history.stored)
    enough = replace(MOST_KEPT, **{bound: 2 * getattr(world.whole.size, bound)})
    monkeypatch.setattr(replay_histories, "MOST_KEPT", enough)
    first, second = [await world.histories(None, EXECUTION, head, from_start=one) for one in (False, True)]
    assert await world.histories(None, EXECUTION, head) is first

    monkeypatch.setattr(replay_histories, "MOST_KEPT", replace(enough, **{bound: getattr(enough, bound) - 1}))
    third = await world.histories(None, EXECUTION, head - 1)

    assert await world.histories(None, EXECUTION, head - 1) is third
    assert await world.histories(None, EXECUTION, head, from_start=True) is not second


@pytest.mark.parametrize("from_start", [False, True])
async def test_who_waits_while_the_same_is_replayed_is_given_that(from_start: bool) -> None:
    world = World()
    head = len(world.history.stored)

    asked = [world.histories(None, EXECUTION, head, from_start=from_start, look_again=True) for _ in range(6)]
    told = await asyncio.gather(*asked)

    assert {one.checksum for one in told} == {world.whole.checksums()["checksum"]}
    began_at = "start" if from_start else "snapshot"
    assert world.metrics.value("noetl_api_replays_total", began_at=began_at) == CONCURRENT


async def test_a_snapshot_that_came_later_and_is_of_another_log_changes_nothing() -> None:
    world = World()
    world.kept = None
    first = await world.histories(None, EXECUTION, len(world.history.stored))
    world.kept = _of_another_log(world)

    assert await world.histories(None, EXECUTION, len(world.history.stored), look_again=True) is first
    assert world.metrics.value("noetl_api_replays_total", began_at="start") == 1


def _touched(world: World) -> tuple[Snapshot, list[bytes]]:
    snapshot, parts = taken(world.history)
    return snapshot, [bytes([*parts[0][:40], parts[0][40] ^ 1, *parts[0][41:]])]


def _of_another_execution(world: World) -> tuple[Snapshot, list[bytes]]:
    return taken(telling_history(choices(12), execution_id=EXECUTION + 1))


def _of_another_log(world: World) -> tuple[Snapshot, list[bytes]]:
    """Right in itself; but somebody has put the database back and the history went on differently."""
    return taken(telling_history(choices(13)))


def _of_another_registry(world: World) -> tuple[Snapshot, list[bytes]]:
    snapshot, parts = taken(world.history)
    return resealed(replace(snapshot, rules=replace(RULES, upcasters="0" * 64))), parts


def _of_other_code(world: World) -> tuple[Snapshot, list[bytes]]:
    return take_snapshot(replayed(world.history, through=POSITION), code_version="0.9")


def _beyond_the_point(world: World) -> tuple[Snapshot, list[bytes]]:
    snapshot, parts = taken(world.history)
    return resealed(replace(snapshot, position=10_000)), parts


def _with_another_tenant_s_seal(world: World) -> tuple[Snapshot, list[bytes]]:
    snapshot, parts = taken(world.history)
    return resealed(replace(snapshot, encryption={**snapshot.encryption, "tenant_id": "rival"})), parts


def _without_rows(world: World) -> tuple[Snapshot, list[bytes]]:
    """Sealed anew by somebody who knows how, over rows that are not there."""
    full = replayed(world.history, through=POSITION)
    bare = replace(full, rows={surface: {} for surface in Surface})
    snapshot, parts = take_snapshot(bare, code_version=RULES.code_version)
    return resealed(replace(snapshot, event_checksum="0" * 64)), parts


@pytest.mark.parametrize(
    "spoil",
    [
        _touched,
        _of_another_execution,
        _of_another_log,
        _of_another_registry,
        _of_other_code,
        _beyond_the_point,
        _with_another_tenant_s_seal,
        _without_rows,
    ],
)
async def test_a_snapshot_that_is_wrong_changes_nothing(spoil: object) -> None:
    world = World()
    assert callable(spoil)
    world.kept = spoil(world)

    assert await world.shows_the_same() == 0
    assert world.refused("corrupt") + world.refused("unfit") == (0 if spoil is _beyond_the_point else 1)


async def test_a_state_in_which_nothing_can_be_folded_is_replaced_by_a_replay_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a snapshot makes the fold do, the answer does not depend on it."""
    world = World()
    real = Replay.take

    def take(self: Replay, events: Iterable[StoredEvent]) -> int:
        if self.version >= POSITION and self._base:
            raise KeyError("a state that nobody could have folded")
        return real(self, events)

    monkeypatch.setattr(Replay, "take", take)

    assert await world.shows_the_same() == 0
    assert world.refused("unfit") == 1


async def test_while_whoever_keeps_snapshots_is_away_replays_begin_at_the_start() -> None:
    world = World()
    world.failure = Unavailable("the projector is away")

    assert await world.shows_the_same() == 0
