"""Batches that somebody overtakes between their look at the log, or what they remember of it, and their write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.optimistic_append import OptimisticAppend
from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.remembered_streams import RememberedStreams, ServerClock
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core import errors
from noetl_core.append import (
    END_KEY,
    Appended,
    AppendRequest,
    Fence,
    LogView,
    Numbered,
    PreparedRequest,
    StreamStart,
    prepare,
)
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyExists, AlreadyTerminal, Fenced, KeyTaken, NotFound, VersionConflict
from noetl_core.ids import Snowflake
from noetl_core.ports.leases import Replica
from noetl_core.sharding import shard_of
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import ACME, SHARDS, chain_holds, history, new_id, note, request, start

Meanwhile = Callable[[], Awaitable[object]]


class Overtaken(OptimisticAppend):
    """Lets something happen once between the look and the write, or before a write that goes without a look."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Meanwhile | None = None
        self.written: list[bool] = []
        self.looks = 0

    async def look(self, connection: asyncpg.Connection, requests: Sequence[PreparedRequest]) -> LogView | None:
        view = await super().look(connection, requests)
        self.looks += 1
        await self._let_happen()
        return view

    async def write(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        await self._let_happen()
        self.written.append(await super().write(connection, view, numbered))
        return self.written[-1]

    async def _let_happen(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()


def replica(
    pool: ConnectionPool,
    optimistic: OptimisticAppend | None = None,
    remembered: RememberedStreams | None = None,
    *,
    node: int,
) -> GroupCommit:
    ids = Snowflake(node)

    def prepared(append: AppendRequest) -> PreparedRequest:
        now_ms = int(time.time() * 1000)
        return prepare(append, next_event_id=lambda: ids.next(now_ms), now=datetime.now(UTC), shard_count=SHARDS)

    log = PostgresEventLog(pool, optimistic=optimistic, remembered=remembered)
    return GroupCommit(log, prepare=prepared, signal=CommitSignal(), metrics=AppendMetrics(MetricSet()))


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=4, application_name="test")
    yield pool
    await pool.close()


@pytest.fixture
def overtaken() -> Overtaken:
    return Overtaken()


@pytest.fixture(params=["looks", "remembers"])
def ours(pool: ConnectionPool, overtaken: Overtaken, request: pytest.FixtureRequest) -> GroupCommit:
    return replica(pool, overtaken, RememberedStreams(most=1000 if request.param == "remembers" else 0), node=7)


@pytest.fixture
def theirs(pool: ConnectionPool) -> GroupCommit:
    return replica(pool, node=8)


async def keys(log: GroupCommit, execution_id: int) -> list[str]:
    events = await history(log, execution_id)
    assert chain_holds(events)
    return [event.envelope().idempotency_key for event in events]


def end() -> Draft:
    return Draft(event_type="playbook.completed", idempotency_key=END_KEY)


async def test_a_batch_that_nobody_overtakes_is_written_at_once(ours: GroupCommit, overtaken: Overtaken) -> None:
    execution_id = await start(ours)

    await ours.append(request(execution_id, note("a"), note("b")))

    assert overtaken.written == [True, True]
    assert await keys(ours, execution_id) == ["start", "a", "b"]


async def test_a_stream_that_is_remembered_is_not_looked_at(pool: ConnectionPool, overtaken: Overtaken) -> None:
    overtaken.clock = ServerClock(monotonic=lambda: 1.0)  # however long a round trip takes here, it was prompt
    ours = replica(pool, overtaken, node=7)
    leases = PostgresShardLeases(pool)
    execution_id = await start(ours)
    shard = shard_of(execution_id, SHARDS)
    held = await leases.hold(_planner("1"), lease_seconds=30)
    fence = Fence(role="planner", shard=shard, epoch=next(one.epoch for one in held.leases if one.shard == shard))
    await ours.append(request(execution_id, note("a"), fence=fence))
    looks = overtaken.looks

    await ours.append(request(execution_id, note("b"), fence=fence, expected_stream_version=2))
    await ours.append(request(execution_id, note("c"), note("d"), fence=fence))

    assert overtaken.looks == looks
    assert overtaken.written == [True] * 4
    assert await keys(ours, execution_id) == ["start", "a", "b", "c", "d"]


async def test_an_overtaken_batch_follows_what_was_first(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("theirs")))

    (appended,) = await ours.append(request(execution_id, note("ours")))

    assert overtaken.written[:2] == [True, False]
    assert (appended.event.stream_version, appended.duplicate) == (3, False)
    assert await keys(ours, execution_id) == ["start", "theirs", "ours"]


async def test_a_batch_over_several_streams_is_whole_when_one_of_them_moved(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken, installed_dsn: str
) -> None:
    first, second = await start(ours), await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(second, note("theirs")))
    streams = tuple(request(execution_id, note("ours")).streams[0] for execution_id in (second, first))

    await ours.append(AppendRequest(tenant_id=ACME.tenant_id, organization_id=ACME.organization_id, streams=streams))

    assert await keys(ours, first) == ["start", "ours"]
    assert await keys(ours, second) == ["start", "theirs", "ours"]
    admin = await asyncpg.connect(installed_dsn)
    assert await admin.fetchval("SELECT sum(last_version - first_version + 1) FROM noetl.outbox") == 5
    await admin.close()


async def test_the_same_fact_written_meanwhile_is_a_duplicate(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("k", meta={"n": 1})))

    (appended,) = await ours.append(request(execution_id, note("k", meta={"n": 1})))

    assert appended.duplicate
    assert await keys(ours, execution_id) == ["start", "k"]


async def test_another_fact_under_the_same_key_meanwhile_wins(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("k", meta={"n": 1})))

    with pytest.raises(KeyTaken):
        await ours.append(request(execution_id, note("k", meta={"n": 2})))

    assert await keys(ours, execution_id) == ["start", "k"]


async def test_an_end_written_meanwhile_refuses_what_comes_after(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, end()))

    with pytest.raises(AlreadyTerminal):
        await ours.append(request(execution_id, Draft(event_type="step.enter", idempotency_key="late")))

    assert await keys(ours, execution_id) == ["start", END_KEY]


async def test_an_expected_version_that_is_passed_meanwhile_is_a_conflict(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("theirs")))

    with pytest.raises(VersionConflict):
        await ours.append(request(execution_id, note("ours"), expected_stream_version=1))

    assert await keys(ours, execution_id) == ["start", "theirs"]


async def test_an_owner_that_is_deposed_meanwhile_writes_nothing(
    ours: GroupCommit, overtaken: Overtaken, pool: ConnectionPool
) -> None:
    leases = PostgresShardLeases(pool)
    execution_id = await start(ours)
    shard = shard_of(execution_id, SHARDS)
    held = await leases.hold(_planner("1"), lease_seconds=30)
    epoch = next(lease.epoch for lease in held.leases if lease.shard == shard)
    overtaken.meanwhile = lambda: leases.hold(_planner("2"), lease_seconds=30)

    with pytest.raises(Fenced):
        await ours.append(request(execution_id, note("late"), fence=Fence(role="planner", shard=shard, epoch=epoch)))

    assert overtaken.written[:2] == [True, False]
    assert await keys(ours, execution_id) == ["start"]


async def test_nothing_is_written_for_an_asker_that_is_deposed_meanwhile(
    ours: GroupCommit, overtaken: Overtaken, pool: ConnectionPool
) -> None:
    leases = PostgresShardLeases(pool)
    execution_id = await start(ours)

    def reaper(incarnation: str) -> Replica:
        return Replica(role="reaper", instance="r-0", incarnation=incarnation, address="a:1")

    held = await leases.hold(reaper("1"), lease_seconds=30)
    overtaken.meanwhile = lambda: leases.hold(reaper("2"), lease_seconds=30)

    with pytest.raises(Fenced):
        await ours.append(
            request(execution_id, note("late"), asked_by=Fence(role="reaper", shard=0, epoch=held.leases[0].epoch))
        )

    assert overtaken.written[:2] == [True, False]
    assert await keys(ours, execution_id) == ["start"]


async def test_a_start_key_that_is_taken_meanwhile_answers_with_the_first_start(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    def starting() -> AppendRequest:
        return request(new_id(), note("start"), start=StreamStart(start_key="once"))

    first = starting()
    overtaken.meanwhile = lambda: theirs.append(first)
    late = starting()

    (appended,) = await ours.append(late)

    assert appended.duplicate
    assert appended.event.envelope().execution_id == first.streams[0].execution_id
    with pytest.raises(NotFound):
        await ours.read(None, late.streams[0].execution_id)


async def test_starts_under_a_key_are_not_looked_at_unless_it_was_used_here(
    pool: ConnectionPool, overtaken: Overtaken
) -> None:
    overtaken.clock = ServerClock(monotonic=lambda: 1.0)
    ours = replica(pool, overtaken, node=7)
    await start(ours)  # from here on the time is known
    looks = overtaken.looks
    first = request(new_id(), note("start"), start=StreamStart(start_key="once"))
    await ours.append(first)
    assert overtaken.looks == looks

    again, other = await asyncio.gather(
        ours.append(request(new_id(), note("start"), start=StreamStart(start_key="once"))),
        ours.append(request(new_id(), note("start"), start=StreamStart(start_key="other"))),
    )

    assert overtaken.looks > looks
    assert (again[0].duplicate, other[0].duplicate) == (True, False)
    assert again[0].event.envelope().execution_id == first.streams[0].execution_id


async def test_a_start_key_of_another_replica_is_found_by_its_index_and_harms_no_other_start(
    pool: ConnectionPool, overtaken: Overtaken, theirs: GroupCommit
) -> None:
    overtaken.clock = ServerClock(monotonic=lambda: 1.0)
    ours = replica(pool, overtaken, node=7)
    await start(ours)
    first = request(new_id(), note("start"), start=StreamStart(start_key="once"))
    await theirs.append(first)
    looks = overtaken.looks

    again, other = await asyncio.gather(
        ours.append(request(new_id(), note("start"), start=StreamStart(start_key="once"))),
        ours.append(request(new_id(), note("start"), start=StreamStart(start_key="other"))),
    )

    assert overtaken.looks == looks + 1, "so that both were looked at, and not each by itself"
    assert (again[0].duplicate, other[0].duplicate) == (True, False)
    assert again[0].event.envelope().execution_id == first.streams[0].execution_id


async def test_an_id_that_is_taken_meanwhile_is_refused(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = new_id()
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("theirs"), start=StreamStart()))

    with pytest.raises(AlreadyExists):
        await ours.append(request(execution_id, note("ours"), start=StreamStart()))

    assert await keys(ours, execution_id) == ["theirs"]


def _planner(incarnation: str) -> Replica:
    return Replica(role="planner", instance="p-0", incarnation=incarnation, address="a:1")


def starting(key: str = "") -> AppendRequest:
    return request(new_id(), note("start"), start=StreamStart(start_key=key))


@pytest.fixture
def foreseeing(pool: ConnectionPool, overtaken: Overtaken) -> GroupCommit:
    """A replica that knows the server's clock from its first append on."""
    overtaken.clock = ServerClock(monotonic=lambda: 1.0)  # however long a round trip takes here, it was prompt
    return replica(pool, overtaken, node=7)


async def test_a_start_is_told_as_it_is_stored_before_it_is(foreseeing: GroupCommit, overtaken: Overtaken) -> None:
    told: list[tuple[Appended, ...]] = []
    known: list[int] = []
    await foreseeing.append_ahead(starting(), told.append)
    assert told == []  # nothing is known of the server's clock yet

    async def count() -> None:
        known.append(len(told))

    overtaken.meanwhile = count
    asked = starting()
    appended = await foreseeing.append_ahead(asked, told.append)

    assert (known, told) == ([1], [appended])
    assert await history(foreseeing, asked.streams[0].execution_id) == (appended[0].event,)


async def test_a_start_that_was_told_of_and_lost_its_key_meanwhile_is_nowhere(
    foreseeing: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    await start(foreseeing)
    told: list[tuple[Appended, ...]] = []
    asked, winner = starting("k"), starting("k")
    overtaken.meanwhile = lambda: theirs.append(winner)

    with pytest.raises(errors.Overtaken):
        await foreseeing.append_ahead(asked, told.append)

    assert len(told) == 1
    with pytest.raises(NotFound):
        await foreseeing.read(None, asked.streams[0].execution_id)
    (again,) = await foreseeing.append(starting("k"))
    assert again.duplicate
    assert again.event.envelope().execution_id == winner.streams[0].execution_id


async def test_a_key_that_was_found_to_be_taken_is_looked_at_before_anything_is_told_again(
    foreseeing: GroupCommit, theirs: GroupCommit
) -> None:
    await start(foreseeing)
    told: list[tuple[Appended, ...]] = []
    await theirs.append(starting("k"))
    with pytest.raises(errors.Overtaken):
        await foreseeing.append_ahead(starting("k"), told.append)

    (again,) = await foreseeing.append_ahead(starting("k"), told.append)

    assert again.duplicate
    assert len(told) == 1


async def test_a_start_that_the_server_cannot_store_is_refused_like_any_other(foreseeing: GroupCommit) -> None:
    await start(foreseeing)

    with pytest.raises(errors.Overtaken):
        await foreseeing.append_ahead(starting("k\ud800"), lambda outcome: None)
    with pytest.raises(errors.InvalidInput):
        await foreseeing.append(starting("k\ud800"))


class Lost(Overtaken):
    """Whose connection breaks with the next write, before the server has it or after that."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.clock = ServerClock(monotonic=lambda: 1.0)
        self._when = when
        self.is_due = False

    async def write(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        if self.is_due and self._when == "before":
            connection.terminate()
        written = await super().write(connection, view, numbered)
        if self.is_due and self._when == "after":
            connection.terminate()
            raise ConnectionResetError("gone")
        return written


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_was_told_of_an_append_with_an_unknown_end_is_true_or_about_nothing(
    pool: ConnectionPool, when: str
) -> None:
    lost = Lost(when)
    ours = replica(pool, lost, node=7)
    await start(ours)
    told: list[tuple[Appended, ...]] = []
    asked = starting("k")

    lost.is_due = True
    with pytest.raises(errors.Unavailable):
        await ours.append_ahead(asked, told.append)
    lost.is_due = False

    (again,) = await ours.append(starting("k"))
    assert again.duplicate == (when == "after")
    if when == "after":
        assert again.event == told[0][0].event
    else:
        with pytest.raises(NotFound):
            await ours.read(None, asked.streams[0].execution_id)
