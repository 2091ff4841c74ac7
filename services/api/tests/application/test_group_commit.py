from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import pytest
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import LONGEST_COMMIT_SECONDS, GroupCommit, Outcome
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import END_KEY, Ahead, Appended, AppendRequest, PreparedRequest, StreamStart
from noetl_core.canonical import encode
from noetl_core.envelope import Draft
from noetl_core.errors import DeadlinePassed, KeyTaken, NoetlError, Overloaded, Unavailable
from noetl_core.ports.event_log import EventPage, HeadPage, Scope
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import EventLogCompliance, chain_holds, history, new_id, note, request, start
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases


class GatedLog:
    """A log whose commits wait until the test lets them go, and fail if it says so."""

    def __init__(self) -> None:
        self.log = InMemoryEventLog()
        self.batches: list[list[PreparedRequest]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.in_flight = 0
        self.most_in_flight = 0

    async def commit(self, requests: Sequence[PreparedRequest], *, ahead: Ahead | None = None) -> list[Outcome]:
        self.batches.append(list(requests))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.gate.wait()
            if self.failure is not None:
                raise self.failure
            return await self.log.commit(requests, ahead=ahead)
        finally:
            self.in_flight -= 1

    async def read(
        self, scope: Scope | None, execution_id: int, *, from_version: int = 1, to_version: int = 0, limit: int = 500
    ) -> EventPage:
        return await self.log.read(scope, execution_id, from_version=from_version, to_version=to_version, limit=limit)

    async def moved_heads(
        self,
        shards: Sequence[int],
        *,
        moved_since: datetime | None,
        after: tuple[datetime, int] | None,
        open_only: bool,
        limit: int,
    ) -> HeadPage:
        return await self.log.moved_heads(
            shards, moved_since=moved_since, after=after, open_only=open_only, limit=limit
        )


@pytest.fixture
def below() -> GatedLog:
    return GatedLog()


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
def signal() -> CommitSignal:
    return CommitSignal()


@pytest.fixture
def group(below: GatedLog, metrics: MetricSet, signal: CommitSignal) -> GroupCommit:
    return GroupCommit(
        below,
        prepare=below.log.prepare,
        signal=signal,
        metrics=AppendMetrics(metrics),
        max_batch_weight=10,
        max_queued_weight=20,
    )


async def appending(group: GroupCommit, *requests: AppendRequest) -> list[asyncio.Task[tuple[Appended, ...]]]:
    """Tasks that have come as far as the queue."""
    tasks = [asyncio.create_task(group.append(one)) for one in requests]
    await asyncio.sleep(0)
    return tasks


class TestGroupCommit(EventLogCompliance):
    @pytest.fixture
    def leases(self) -> InMemoryShardLeases:
        return InMemoryShardLeases()

    @pytest.fixture
    def log(self, leases: InMemoryShardLeases) -> GroupCommit:
        below = InMemoryEventLog(leases=leases)
        return GroupCommit(below, prepare=below.prepare, signal=CommitSignal(), metrics=AppendMetrics(MetricSet()))


async def test_an_idle_log_commits_at_once(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)

    for number in range(3):
        await group.append(request(execution_id, note(f"k{number}")))

    assert [len(batch) for batch in below.batches] == [1, 1, 1, 1]


async def test_what_arrives_during_a_commit_shares_the_next_one(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.gate.clear()

    tasks = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    tasks += await appending(group, *(request(execution_id, note(f"k{number}")) for number in range(6)))
    below.gate.set()
    await asyncio.gather(*tasks)

    assert [len(batch) for batch in below.batches[1:]] == [1, 6]
    assert below.most_in_flight == 1
    assert chain_holds(await history(group, execution_id))


async def test_a_batch_has_a_limit_and_order_is_kept(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.gate.clear()

    tasks = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    many = [request(execution_id, *(note(f"{part}/{n}") for n in range(4))) for part in range(5)]
    tasks += await appending(group, *many)
    below.gate.set()
    await asyncio.gather(*tasks)

    assert [len(batch) for batch in below.batches[1:]] == [1, 2, 2, 1]
    keys = [event.envelope().idempotency_key for event in await history(group, execution_id)]
    assert keys == ["start", "first", *(f"{part}/{n}" for part in range(5) for n in range(4))]


async def test_a_request_larger_than_a_batch_is_one_batch(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)

    await group.append(request(execution_id, *(note(f"k{n}") for n in range(15))))

    assert [len(batch) for batch in below.batches] == [1, 1]


async def test_a_full_queue_pushes_back(group: GroupCommit, below: GatedLog, metrics: MetricSet) -> None:
    execution_id = await start(group)
    below.gate.clear()
    tasks = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    tasks += await appending(group, *(request(execution_id, note(f"k{n}")) for n in range(20)))

    with pytest.raises(Overloaded):
        await group.append(request(execution_id, note("too much")))

    assert metrics.value("noetl_api_append_queue_events") == 20
    below.gate.set()
    await asyncio.gather(*tasks)
    assert metrics.value("noetl_api_append_queue_events") == 0
    assert metrics.value("noetl_api_appends_refused_total", code="overloaded") == 1
    assert len(await history(group, execution_id)) == 22


async def test_a_large_event_weighs_more_than_one(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.gate.clear()
    tasks = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    large = [request(execution_id, note(f"k{n}", meta={"x": "x" * 50_000})) for n in range(2)]
    tasks += await appending(group, *large)
    below.gate.set()
    await asyncio.gather(*tasks)

    assert [len(batch) for batch in below.batches[2:]] == [1, 1]


async def test_a_caller_that_goes_away_does_not_take_the_batch_with_it(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.gate.clear()
    (first,) = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    waiting = await appending(group, request(execution_id, note("a")), request(execution_id, note("b")))

    first.cancel()
    waiting[0].cancel()
    below.gate.set()
    (appended,) = await waiting[1]

    assert appended.event.stream_version == 4
    keys = [event.envelope().idempotency_key for event in await history(group, execution_id)]
    assert keys == ["start", "first", "a", "b"]


@pytest.mark.parametrize("failure", [Unavailable("gone"), DeadlinePassed("slow")])
async def test_a_database_that_is_away_is_told_to_exactly_the_callers_of_that_batch(
    group: GroupCommit, below: GatedLog, failure: NoetlError
) -> None:
    execution_id = await start(group)
    below.gate.clear()
    below.failure = failure
    tasks = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    later = await appending(group, request(execution_id, note("a")), request(execution_id, note("b")))
    below.gate.set()
    outcome = (await asyncio.gather(*tasks, return_exceptions=True))[0]
    below.failure = None

    answers = await asyncio.gather(*later, return_exceptions=True)

    assert isinstance(outcome, Unavailable)
    assert outcome.retryable
    # The second batch may have begun before the database came back; its callers share one fate.
    assert len({type(answer) for answer in answers}) == 1
    await group.append(request(execution_id, note("c")))
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len({id(error) for error in errors}) == len(errors)


async def test_a_defect_below_is_answered_and_the_next_batch_is_fine(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.failure = RuntimeError("a bug")

    with pytest.raises(NoetlError) as refusal:
        await group.append(request(execution_id, note("a")))
    below.failure = None
    await group.append(request(execution_id, note("b")))

    assert refusal.value.code == "internal"
    assert "a bug" not in refusal.value.message


async def test_a_refusal_is_told_to_its_caller_alone(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.gate.clear()
    tasks = await appending(group, request(execution_id, note("first")))
    await asyncio.sleep(0)
    tasks += await appending(
        group, request(execution_id, note("start", meta={"x": 1})), request(execution_id, note("good"))
    )
    below.gate.set()

    first, refused, good = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(refused, KeyTaken)
    assert not isinstance(first, BaseException)
    assert not isinstance(good, BaseException)


async def test_the_size_of_each_result_is_counted_once_it_is_committed(
    group: GroupCommit, below: GatedLog, metrics: MetricSet
) -> None:
    execution_id = await start(group)
    small, large = {"status": "ok"}, {"status": "ok", "context": {"text": "x" * 3_000}}
    done = request(execution_id, note("a"), note("b", result=small), note("c", result=large))
    await group.append(done)
    await group.append(done)  # all of them are duplicates
    below.failure = Unavailable("the database is away")
    with pytest.raises(Unavailable):
        await group.append(request(execution_id, note("d", result=small)))
    below.failure = None
    with pytest.raises(KeyTaken):
        await group.append(request(execution_id, note("a", result=large)))

    assert metrics.value("noetl_event_result_bytes_count") == 2
    assert metrics.value("noetl_event_result_bytes_sum") == len(encode(small)) + len(encode(large))
    assert metrics.value("noetl_event_result_bytes_bucket", le="2048.0") == 1


async def test_closing_answers_what_was_taken_and_takes_nothing_more(group: GroupCommit, below: GatedLog) -> None:
    execution_id = await start(group)
    below.gate.clear()
    tasks = await appending(group, *(request(execution_id, note(f"k{n}")) for n in range(12)))
    closing = asyncio.create_task(group.close())
    await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await group.append(request(execution_id, note("late")))
    assert not closing.done()
    below.gate.set()
    await closing

    assert all(task.done() and task.exception() is None for task in tasks)
    assert len(await history(group, execution_id)) == 13


async def test_closing_an_idle_log_is_done_at_once(group: GroupCommit) -> None:
    await group.close()


async def test_followers_are_woken_with_the_version_that_was_committed(
    group: GroupCommit, signal: CommitSignal
) -> None:
    execution_id = await start(group)
    with signal.watching(execution_id) as watcher, signal.watching(new_id()) as other:
        await group.append(request(execution_id, note("a"), note("b")))

        await watcher.wait_beyond(2, seconds=60)
        await other.wait_beyond(0, seconds=0.01)

        await group.append(request(execution_id, note("a")))  # a duplicate moves nothing
        await watcher.wait_beyond(3, seconds=0.01)


@pytest.mark.parametrize(
    ("draft", "order"),
    [
        (note("a"), ["caller", "follower"]),
        (Draft(event_type="playbook.completed", idempotency_key=END_KEY), ["follower", "caller"]),
    ],
)
async def test_callers_go_on_before_followers_are_told_but_of_an_end(
    group: GroupCommit, signal: CommitSignal, draft: Draft, order: list[str]
) -> None:
    execution_id = await start(group)
    woken: list[str] = []

    async def call() -> None:
        await group.append(request(execution_id, draft))
        woken.append("caller")

    with signal.watching(execution_id) as watcher:

        async def follow() -> None:
            await watcher.wait_beyond(1, seconds=60)
            woken.append("follower")

        await asyncio.gather(follow(), call())

    assert woken == order


async def test_events_duplicates_and_batches_are_counted(group: GroupCommit, metrics: MetricSet) -> None:
    execution_id = await start(group)
    await group.append(request(execution_id, note("a"), note("b")))
    await group.append(request(execution_id, note("a"), note("c")))

    assert metrics.value("noetl_api_events_appended_total") == 4
    assert metrics.value("noetl_api_events_duplicate_total") == 1
    assert metrics.value("noetl_api_append_seconds_count") == 3
    assert metrics.value("noetl_api_commit_batch_events_sum") == 5


async def test_a_commit_that_hangs_is_seen_in_the_health_until_it_ends(below: GatedLog, metrics: MetricSet) -> None:
    now = [100.0]
    group = GroupCommit(
        below,
        prepare=below.log.prepare,
        signal=CommitSignal(),
        metrics=AppendMetrics(metrics),
        clock=lambda: now[0],
    )
    health = Health()
    health.check("appends", group.stuck)
    execution_id = await start(group)
    below.gate.clear()
    (task,) = await appending(group, request(execution_id, note("k")))
    await asyncio.sleep(0)
    assert health.report().ready, "it has only begun"

    now[0] += LONGEST_COMMIT_SECONDS + 1
    assert "under way for 31 s" in health.report().checks[0].detail
    below.gate.set()
    await task
    assert health.report().ready


async def test_what_a_request_by_itself_comes_to_is_told_before_it_is_durable(
    group: GroupCommit, below: GatedLog
) -> None:
    told: list[tuple[Appended, ...]] = []

    appended = await group.append_ahead(request(new_id(), note("start"), start=StreamStart()), told.append)

    assert told == [appended]


async def test_nothing_is_told_of_what_shares_its_transaction(group: GroupCommit, below: GatedLog) -> None:
    told: list[tuple[Appended, ...]] = []
    below.gate.clear()
    first = asyncio.create_task(start(group))
    await asyncio.sleep(0)
    others = [
        asyncio.create_task(group.append_ahead(request(new_id(), note("start"), start=StreamStart()), told.append))
        for _ in range(2)
    ]
    await asyncio.sleep(0)

    below.gate.set()
    await asyncio.gather(first, *others)

    assert [len(batch) for batch in below.batches] == [1, 2]
    assert told == []
