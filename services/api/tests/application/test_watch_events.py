from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import pytest
from noetl_api.application.commit_signal import MAX_KEPT_EVENTS, CommitSignal
from noetl_api.application.group_commit import GroupCommit, Outcome
from noetl_api.application.recent_streams import MOST_STREAMS
from noetl_api.application.watch_events import PAGE, WatchEvents
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import END_KEY, Ahead, PlacedEvent, PreparedRequest
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.ports.event_log import EventPage, Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import chain_holds, new_id, note, request, start
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.until import until

RITA = Caller(name="rita", tenant_id="acme", organization_id="ops", role=Role.READER)
RIVAL = Caller(name="rival", tenant_id="rival", organization_id="ops", role=Role.READER)
END = Draft(event_type="playbook.completed", idempotency_key=END_KEY)


class CountingLog(InMemoryEventLog):
    """Counts reads: whoever polls is found out."""

    reads = 0

    async def read(
        self, scope: Scope | None, execution_id: int, *, from_version: int = 1, to_version: int = 0, limit: int = 500
    ) -> EventPage:
        self.reads += 1
        return await super().read(scope, execution_id, from_version=from_version, to_version=to_version, limit=limit)


class EarlyNotices(CountingLog):
    """Tells of a commit as PostgreSQL does: to everybody who listens, before it answers whoever made it."""

    def __init__(self, signal: CommitSignal) -> None:
        super().__init__()
        self._signal = signal

    async def commit(
        self, requests: Sequence[PreparedRequest], *, ahead: Ahead | None = None, at: datetime | None = None
    ) -> list[Outcome]:
        outcomes = await super().commit(requests, ahead=ahead, at=at)
        for prepared in requests:
            for stream in prepared.streams:
                execution_id = stream.append.execution_id
                self._signal.heard(execution_id, self.streams[execution_id].head.version)
        for _ in range(5):
            await asyncio.sleep(0)  # whoever is woken now comes first
        return outcomes


Pages = AsyncIterator[tuple[EventPage, bool]]


@pytest.fixture
def signal() -> CommitSignal:
    return CommitSignal()


@pytest.fixture
def log(signal: CommitSignal) -> CountingLog:
    def tell(events: Sequence[PlacedEvent]) -> None:
        for placed in events:
            signal.moved(placed.head.execution_id, placed.stored.stream_version)

    log = CountingLog()
    log.on_commit.append(tell)
    return log


@pytest.fixture
def watch(log: CountingLog, signal: CommitSignal) -> WatchEvents:
    return WatchEvents(log, signal, safety_net_seconds=60)


def _tell_with_events(log: CountingLog, signal: CommitSignal) -> None:
    """As the commits of this replica are told."""

    def tell(events: Sequence[PlacedEvent]) -> None:
        stored = [placed.stored for placed in events]
        ended = any(placed.prepared.draft.event_type == END.event_type for placed in events)
        signal.moved(events[0].head.execution_id, stored[-1].stream_version, stored, ended=ended)

    log.on_commit[:] = [tell]


async def everything(pages: Pages) -> tuple[StoredEvent, ...]:
    return tuple([event async for page, _ in pages for event in page.events])


async def test_a_follower_sees_every_event_once_and_in_order(log: CountingLog, watch: WatchEvents) -> None:
    execution_id = await start(log)
    following = asyncio.create_task(everything(watch(RITA, None, execution_id)))
    for number in range(50):
        await log.append(request(execution_id, note(f"a{number}"), note(f"b{number}")))
        if number % 3:
            await asyncio.sleep(0)
    await log.append(request(execution_id, END))

    events = await following

    assert len(events) == 102
    assert chain_holds(events)


async def test_nobody_polls(log: CountingLog, watch: WatchEvents) -> None:
    execution_id = await start(log)
    pages = watch(RITA, None, execution_id)
    await anext(pages)
    waiting = asyncio.ensure_future(anext(pages))
    for _ in range(10):
        await asyncio.sleep(0.005)

    assert log.reads == 1
    await log.append(request(execution_id, note("a")))
    page, ended = await waiting
    assert ([event.stream_version for event in page.events], ended) == ([2], False)


async def test_what_is_committed_here_is_given_on_without_reading_it(log: CountingLog, signal: CommitSignal) -> None:
    _tell_with_events(log, signal)
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    execution_id = await start(log)
    following = asyncio.create_task(everything(watch(RITA, None, execution_id)))
    await until(lambda: log.reads == 1)
    for number in range(50):
        await log.append(request(execution_id, note(f"a{number}"), note(f"b{number}")))
        await asyncio.sleep(0)
    await log.append(request(execution_id, END))

    events = await following

    assert len(events) == 102
    assert chain_holds(events)
    assert log.reads == 1


async def test_who_follows_a_commit_does_not_read_it_because_postgres_told_of_it_first(signal: CommitSignal) -> None:
    below = EarlyNotices(signal)
    log = GroupCommit(below, prepare=below.prepare, signal=signal, metrics=AppendMetrics(MetricSet()))
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    execution_id = await start(log)
    signal.recent.forget()
    following = asyncio.create_task(everything(watch(RITA, None, execution_id)))
    await until(lambda: below.reads == 1)
    for number in range(10):
        await log.append(request(execution_id, note(f"a{number}")))
    await log.append(request(execution_id, END))

    events = await following

    assert [event.stream_version for event in events] == list(range(1, 13))
    assert below.reads == 1


@pytest.fixture
def here(signal: CommitSignal) -> tuple[EarlyNotices, GroupCommit]:
    """A log, and the one replica that writes to it."""
    below = EarlyNotices(signal)
    return below, GroupCommit(below, prepare=below.prepare, signal=signal, metrics=AppendMetrics(MetricSet()))


async def test_what_has_just_begun_here_is_followed_without_reading_it(
    here: tuple[EarlyNotices, GroupCommit], signal: CommitSignal
) -> None:
    below, log = here
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    execution_id = await start(log)
    await log.append(request(execution_id, note("a"), note("b")))
    following = asyncio.create_task(everything(watch(RITA, None, execution_id)))
    await asyncio.sleep(0)
    await log.append(request(execution_id, END))

    assert [event.stream_version for event in await following] == [1, 2, 3, 4]
    assert [event.stream_version for event in await everything(watch(RITA, None, execution_id, from_version=3))] == [
        3,
        4,
    ]
    assert below.reads == 0
    with pytest.raises(NotFound):
        await everything(watch(RIVAL, None, execution_id))


async def test_what_another_replica_may_have_moved_is_read(
    here: tuple[EarlyNotices, GroupCommit], signal: CommitSignal
) -> None:
    below, log = here
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    moved, unsure = await start(log), await start(log)
    for execution_id in (moved, unsure):
        await below.append(request(execution_id, END))  # as another replica does
    signal.heard(moved, 2)
    assert len(await everything(watch(RITA, None, moved))) == 2
    assert below.reads == 1

    signal.anything_moved()
    assert len(await everything(watch(RITA, None, unsure))) == 2
    assert below.reads == 2


async def test_of_long_streams_only_the_newest_is_kept_and_only_of_some_streams(
    here: tuple[EarlyNotices, GroupCommit], signal: CommitSignal
) -> None:
    below, log = here
    execution_id = await start(log)
    head = 1
    while signal.recent.page(None, execution_id, 1) is not None:
        await log.append(request(execution_id, *(note(f"{new_id()}") for _ in range(20))))
        head += 20
        page = signal.recent.page(None, execution_id, head)
        assert page is not None
        assert [event.stream_version for event in page.events] == [head]

    await log.append(request(execution_id, END))
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    events = await everything(watch(RITA, None, execution_id, from_version=head - 5))
    assert [event.stream_version for event in events] == list(range(head - 5, head + 2))
    assert below.reads == 0
    assert len(await everything(watch(RITA, None, execution_id))) == head + 1
    assert below.reads > 0

    first = await start(log)
    for _ in range(MOST_STREAMS):
        await start(log)
    assert first not in signal.recent


async def test_who_is_too_far_behind_reads_the_log(log: CountingLog, signal: CommitSignal) -> None:
    _tell_with_events(log, signal)
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    execution_id = await start(log)
    pages = watch(RITA, None, execution_id)
    await anext(pages)

    await log.append(request(execution_id, *(note(f"k{n}") for n in range(MAX_KEPT_EVENTS))))
    await log.append(request(execution_id, note("late"), END))

    events = await everything(pages)
    assert [event.stream_version for event in events] == list(range(2, MAX_KEPT_EVENTS + 4))


async def test_a_commit_of_another_replica_in_between_is_read(log: CountingLog, signal: CommitSignal) -> None:
    _tell_with_events(log, signal)
    watch = WatchEvents(log, signal, safety_net_seconds=60)
    execution_id = await start(log)
    pages = watch(RITA, None, execution_id)
    await anext(pages)
    telling, log.on_commit[:] = list(log.on_commit), []
    await log.append(request(execution_id, note("theirs")))
    log.on_commit[:] = telling
    await log.append(request(execution_id, note("ours"), END))
    signal.moved(execution_id, 2)

    events = await everything(pages)

    assert [event.stream_version for event in events] == [2, 3, 4]


async def test_the_safety_net_finds_what_nobody_told(log: CountingLog, signal: CommitSignal) -> None:
    log.on_commit.clear()
    watch = WatchEvents(log, signal, safety_net_seconds=0.01)
    execution_id = await start(log)
    pages = watch(RITA, None, execution_id)
    await anext(pages)

    await log.append(request(execution_id, note("a")))

    page, _ = await anext(pages)
    assert [event.stream_version for event in page.events] == [2]


async def test_a_long_history_comes_in_pages(log: CountingLog, watch: WatchEvents) -> None:
    execution_id = await start(log)
    await log.append(request(execution_id, *(note(f"k{n}") for n in range(PAGE * 2))))
    await log.append(request(execution_id, END))

    sizes = [(len(page.events), ended) async for page, ended in watch(RITA, None, execution_id)]

    assert sizes == [(PAGE, False), (PAGE, False), (2, True)]


async def test_following_may_begin_in_the_middle_and_after_the_end(log: CountingLog, watch: WatchEvents) -> None:
    execution_id = await start(log)
    await log.append(request(execution_id, note("a"), END))

    middle = [(len(page.events), ended) async for page, ended in watch(RITA, None, execution_id, from_version=3)]
    after = [(len(page.events), ended) async for page, ended in watch(RITA, None, execution_id, from_version=9)]

    assert middle == [(1, True)]
    assert after == [(0, True)]


async def test_what_follows_the_end_does_not_keep_a_follower(log: CountingLog, watch: WatchEvents) -> None:
    execution_id = await start(log)
    await log.append(request(execution_id, END))
    await log.append(request(execution_id, Draft(event_type="execution.retired", idempotency_key="r")))

    assert len(await everything(watch(RITA, None, execution_id))) == 3


async def test_strangers_follow_nothing(log: CountingLog, watch: WatchEvents, signal: CommitSignal) -> None:
    execution_id = await start(log)

    with pytest.raises(NotFound):
        await anext(watch(RIVAL, None, execution_id))
    with pytest.raises(InvalidInput):
        await anext(watch(RITA, None, execution_id, from_version=-1))
    assert signal.watcher_count == 0
