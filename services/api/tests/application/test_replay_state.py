"""States at points of a history: the same as a fold of the log gives, on pages that name one point."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from noetl_api.application.replay_histories import ReplayHistories
from noetl_api.application.replay_points import ReplayPoints
from noetl_api.application.replay_state import ReplayPage, ReplayQuery, ReplayState
from noetl_api.application.resolve_payloads import ResolvePayloads
from noetl_api.telemetry import ReplayMetrics
from noetl_core.canonical import decode
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import InvalidInput, NotFound, TooLargeToReplay
from noetl_core.ports.event_log import Scope
from noetl_core.ports.snapshots import NoSnapshots
from noetl_core.replay.history import Replay
from noetl_core.replay.points import Point
from noetl_core.replay.sizes import MOST_IN_ONE_PIECE
from noetl_core.surfaces.shapes import Surface
from noetl_core.values import replace
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import EXECUTION, NOON, WORKLOAD, History, choices, drawn_history
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore

ADA = Caller(name="ada", tenant_id="default", organization_id="default", role=Role.READER)
RIVAL = Caller(name="rob", tenant_id="rival", organization_id="ops", role=Role.READER)


class Finder:
    def __init__(self, events: list[StoredEvent]) -> None:
        self._events = events

    async def find(self, scope: Scope | None, event_id: int) -> StoredEvent:
        for event in self._events:
            if event.envelope().event_id == event_id:
                return event
        raise NotFound("event", event_id, code="event.not_found")


class World:
    """A log with one history, and what replays it."""

    def __init__(self) -> None:
        self.now = NOON
        self.log = InMemoryEventLog(clock=self._tick)
        self.payloads = InMemoryPayloadStore()
        self.events: list[StoredEvent] = []

    def _tick(self) -> Any:
        self.now += timedelta(seconds=1)
        return self.now

    async def with_history(self, history: History) -> World:
        self.events = await history.append_to(self.log)
        return self

    def replay(self, **limits: Any) -> ReplayState:
        histories = ReplayHistories(self.log, NoSnapshots(), metrics=ReplayMetrics(MetricSet()), **limits)
        points = ReplayPoints(self.log, Finder(self.events))
        return ReplayState(points=points, histories=histories, resolve=ResolvePayloads(self.payloads))

    async def all_pages(self, replay: ReplayState, **query: Any) -> tuple[list[ReplayPage], dict[Surface, Any]]:
        pages: list[ReplayPage] = []
        rows: dict[Surface, Any] = {surface: {} for surface in Surface}
        token = ""
        while True:
            page = await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, page_token=token, **query))
            pages.append(page)
            for one in page.rows:
                assert one.key not in rows[one.surface]
                rows[one.surface][one.key] = decode(one.row)
            token = page.next_page_token
            if not token:
                return pages, rows

    def folded(self, version: int) -> Any:
        replay = Replay(EXECUTION)
        replay.take(self.events[:version])
        return replay.result()


@pytest.fixture
async def world() -> World:
    return await World().with_history(drawn_history(choices(7), moves=60))


async def test_pages_together_are_the_fold_of_the_log(world: World) -> None:
    pages, rows = await world.all_pages(world.replay(), page_size=3)

    folded = world.folded(len(world.events))
    assert len(pages) > 3
    assert rows == folded.rows
    assert {page.known.checksum for page in pages} == {folded.checksums()["checksum"]}
    assert pages[0].known.checksums == folded.checksums()["surfaces"]


async def test_a_point_is_an_event_a_position_or_a_time(world: World) -> None:
    replay, tenth = world.replay(), world.events[9]
    points = [
        Point(stream_version=10),
        Point(event_id=tenth.envelope().event_id),
        Point(time=tenth.ingest_time),
    ]

    states = [await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, point=point)) for point in points]

    reached = max(one.stream_version for one in world.events if one.ingest_time <= tenth.ingest_time)
    assert [one.known.replayed.state.stream_version for one in states] == [10, 10, reached]
    assert states[0].known.checksum == states[1].known.checksum == world.folded(10).checksums()["checksum"]


async def test_every_time_within_a_history_is_a_point(world: World) -> None:
    points = ReplayPoints(world.log, Finder(world.events))
    for event in world.events[::3]:
        for moment in (event.ingest_time, event.ingest_time + timedelta(microseconds=1)):
            version, head = await points.version(None, EXECUTION, Point(time=moment))
            assert version == max(one.stream_version for one in world.events if one.ingest_time <= moment)
            assert head == len(world.events)


async def test_pages_keep_their_point_while_the_history_goes_on(world: World) -> None:
    world = await World().with_history(drawn_history(choices(7), moves=20, ends=False))
    replay = world.replay()
    first = await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, page_size=1))
    note = Draft(event_type="user.note", idempotency_key="more")
    await world.log.append(History().request((note,), starts=False))

    second = await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, page_size=1, page_token=first.next_page_token))

    assert second.known.replayed.state.stream_version == len(world.events)
    assert second.head_version == len(world.events) + 1


@pytest.mark.parametrize(
    "other",
    [
        {"execution_id": EXECUTION + 1},
        {"projection": "execution"},
        {"resolve_payloads": True},
        {"point": Point(stream_version=3)},
    ],
)
async def test_a_page_token_is_of_one_query(world: World, other: dict[str, Any]) -> None:
    await drawn_history(choices(7), moves=60, execution_id=EXECUTION + 1).append_to(world.log)
    replay = world.replay()
    query: dict[str, Any] = {"execution_id": EXECUTION, "projection": "all", "page_size": 1}
    first = await replay(ADA, None, ReplayQuery(**query))

    with pytest.raises(InvalidInput, match="page token"):
        await replay(ADA, None, ReplayQuery(**(query | other), page_token=first.next_page_token))


async def test_a_page_token_is_of_one_history() -> None:
    """A database that has lost commits goes on differently; rows need not show it."""
    world = await World().with_history(drawn_history(choices(7), moves=20, ends=False))
    replay, before = world.replay(), copy.deepcopy(world.log.streams)

    async def first_page_after(note: str) -> ReplayPage:
        world.log.streams.clear()
        world.log.streams.update(copy.deepcopy(before))
        draft = Draft(event_type="user.note", idempotency_key=note)
        await world.log.append(History().request((draft,), starts=False))
        return await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, page_size=1))

    lost = await first_page_after("lost")
    kept = await first_page_after("kept")

    assert lost.known.replayed.state.stream_version == kept.known.replayed.state.stream_version
    with pytest.raises(InvalidInput, match="page token"):
        await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, page_token=lost.next_page_token))
    await replay(ADA, None, ReplayQuery(execution_id=EXECUTION, page_token=kept.next_page_token))


async def test_pages_may_go_on_naming_their_point(world: World) -> None:
    tenth = world.events[9]
    for point in (
        Point(stream_version=10),
        Point(event_id=tenth.envelope().event_id),
        Point(time=tenth.ingest_time),
        Point(time=NOON + timedelta(days=1)),
    ):
        pages, rows = await world.all_pages(world.replay(), page_size=1, point=point)

        assert len(pages) > 1
        assert rows == world.folded(pages[0].known.replayed.state.stream_version).rows


async def test_one_surface_or_none_may_be_asked_for(world: World) -> None:
    _, rows = await world.all_pages(world.replay(), projection="commands")
    pages, none = await world.all_pages(world.replay(), projection="none")

    assert rows[Surface.COMMANDS]
    assert not rows[Surface.EXECUTION]
    assert not any(none.values())
    assert pages[0].known.checksum == world.folded(len(world.events)).checksums()["checksum"]


async def test_payloads_are_looked_for_and_read(world: World) -> None:
    replay = world.replay()
    pages, _ = await world.all_pages(replay, projection="none", resolve_payloads=True)
    await world.payloads.put(tenant_id="default", organization_id="default", data=b"{}", media_type="application/json")
    again, _ = await world.all_pages(replay, projection="none", resolve_payloads=True)

    assert [(one.use.sha256, one.status) for one in pages[0].payloads] == [(WORKLOAD.sha256, "missing")]
    assert [(one.status, one.stored_bytes) for one in again[0].payloads] == [("verified", 2)]


@pytest.mark.parametrize("size", [-1, True, 2**53 - 1, 1.5, "2", None, {}])
async def test_whatever_a_user_s_event_says_of_a_size_its_payload_and_all_others_are_looked_for(size: object) -> None:
    world = await World().with_history(drawn_history(choices(7), moves=20, ends=False))
    ref = await world.payloads.put(tenant_id="default", organization_id="default", data=b"[]", media_type="text/plain")
    await world.payloads.put(tenant_id="default", organization_id="default", data=b"{}", media_type="application/json")
    told = Draft(event_type="user.note", idempotency_key="told", meta={"about": {**ref.to_json(), "bytes": size}})
    await world.log.append(History().request((told,), starts=False))

    pages, _ = await world.all_pages(world.replay(), projection="none", resolve_payloads=True)

    assert {one.use.sha256: one.status for one in pages[0].payloads} == {
        ref.sha256: "verified",
        WORKLOAD.sha256: "verified",
    }


async def test_an_address_of_somebody_else_hides_no_payload_of_one_s_own() -> None:
    world = await World().with_history(drawn_history(choices(7), moves=20, ends=False))
    own = await world.payloads.put(tenant_id="default", organization_id="default", data=b"[]", media_type="text/plain")
    others = await world.payloads.put(tenant_id="rival", organization_id="default", data=b"[]", media_type="text/plain")
    for ref in (others, own):
        told = Draft(event_type="user.note", idempotency_key=ref.uri, meta={"about": ref.to_json()})
        await world.log.append(History().request((told,), starts=False))

    pages, _ = await world.all_pages(world.replay(), projection="none", resolve_payloads=True, page_size=1)

    assert {one.use.uri: one.status for page in pages for one in page.payloads} == {
        WORKLOAD.uri: "missing",
        own.uri: "verified",
        others.uri: "missing",
    }
    assert {page.known.payload_count for page in pages} == {2}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"point": Point(stream_version=10_000)}, InvalidInput),
        ({"point": Point(event_id=4711)}, NotFound),
        ({"point": Point(time=NOON - timedelta(days=1))}, InvalidInput),
        ({"projection": "everything"}, InvalidInput),
        ({"page_token": "what?"}, InvalidInput),
        ({"page_token": "W10"}, InvalidInput),
        ({"page_size": 1001}, InvalidInput),
    ],
)
async def test_what_cannot_be_asked_is_refused(world: World, query: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await world.replay()(ADA, None, ReplayQuery(execution_id=EXECUTION, **query))


async def test_what_belongs_to_others_does_not_exist(world: World) -> None:
    replay = world.replay()
    await replay(ADA, None, ReplayQuery(execution_id=EXECUTION))

    with pytest.raises(NotFound):
        await replay(RIVAL, None, ReplayQuery(execution_id=EXECUTION))


async def test_a_state_that_is_too_large_is_refused_and_not_cut_off(world: World) -> None:
    with pytest.raises(TooLargeToReplay):
        await world.replay(most=replace(MOST_IN_ONE_PIECE, rows=5))(ADA, None, ReplayQuery(execution_id=EXECUTION))
