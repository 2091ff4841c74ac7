"""Large batches: one query copies their events, unless somebody overtakes them between their look and that query.

Or between what is remembered of their streams, and that query.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import asyncpg
import pytest
from noetl_adapters.postgres.commit_listener import moved_streams
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.copied_append import LOCKED_BATCHES, CopiedAppend
from noetl_adapters.postgres.event_log import COPY_FROM_ROWS, PostgresEventLog
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.optimistic_append import OptimisticAppend
from noetl_adapters.postgres.pool import LOOKUPS, open_pool
from noetl_adapters.postgres.remembered_streams import RememberedStreams, ServerClock
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import (
    AppendRequest,
    Fence,
    Hint,
    LogView,
    Numbered,
    PreparedRequest,
    StreamAppend,
    StreamStart,
    prepare,
)
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyExists, Fenced, InvalidInput, VersionConflict
from noetl_core.ids import Snowflake
from noetl_core.ports.leases import Replica
from noetl_core.sharding import shard_of
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import ACME, SHARDS, chain_holds, history, new_id, note, request, start

MANY = COPY_FROM_ROWS + 8


class Overtaken(CopiedAppend):
    """Lets something happen once between the look, or what is remembered, and the write."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.written: list[bool] = []

    async def write(self, connection: asyncpg.Connection, view: LogView, numbered: Numbered) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        self.written.append(await super().write(connection, view, numbered))
        return self.written[-1]


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=4, application_name="test", settings=LOOKUPS)
    yield pool
    await pool.close()


@pytest.fixture
async def admin(installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(installed_dsn)
    yield connection
    await connection.close()


@pytest.fixture
def overtaken() -> Overtaken:
    return Overtaken()


class Looks(OptimisticAppend):
    """Counts them, by a clock that stands still: however long a round trip takes here, it was prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ServerClock(monotonic=lambda: 1.0)
        self.count = 0

    async def look(self, connection: asyncpg.Connection, requests: Sequence[PreparedRequest]) -> LogView | None:
        self.count += 1
        return await super().look(connection, requests)


@pytest.fixture
def looks() -> Looks:
    return Looks()


def replica(
    pool: ConnectionPool,
    copied: CopiedAppend | None = None,
    looks: Looks | None = None,
    remembered: RememberedStreams | None = None,
    *,
    node: int,
) -> GroupCommit:
    ids = Snowflake(node)

    def prepared(append: AppendRequest) -> PreparedRequest:
        now_ms = int(time.time() * 1000)
        return prepare(append, next_event_id=lambda: ids.next(now_ms), now=datetime.now(UTC), shard_count=SHARDS)

    log = PostgresEventLog(pool, copied=copied, optimistic=looks, remembered=remembered)
    return GroupCommit(log, prepare=prepared, signal=CommitSignal(), metrics=AppendMetrics(MetricSet()))


@pytest.fixture(params=["looks", "remembers"])
def remembers(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "remembers")


@pytest.fixture
def ours(pool: ConnectionPool, overtaken: Overtaken, looks: Looks, remembers: bool) -> GroupCommit:
    return replica(pool, overtaken, looks, RememberedStreams(most=1000 if remembers else 0), node=7)


@pytest.fixture
def theirs(pool: ConnectionPool) -> GroupCommit:
    return replica(pool, node=8)


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(MANY)]


def notes(prefix: str) -> list[Draft]:
    return [note(name) for name in names(prefix)]


async def keys(log: GroupCommit, execution_id: int) -> list[str]:
    events = await history(log, execution_id)
    assert chain_holds(events)
    return [event.envelope().idempotency_key for event in events]


def planner(incarnation: str) -> Replica:
    return Replica(role="planner", instance="p-0", incarnation=incarnation, address="a:1")


async def test_large_batches_of_a_stream_that_is_remembered_are_not_looked_at(
    pool: ConnectionPool, overtaken: Overtaken, looks: Looks, theirs: GroupCommit
) -> None:
    ours = replica(pool, overtaken, looks, node=7)
    execution_id = await start(ours)
    await ours.append(request(execution_id, *notes("a")))
    seen = looks.count

    await ours.append(request(execution_id, *notes("b"), expected_stream_version=1 + MANY))
    again = await ours.append(request(execution_id, note("c")))
    assert looks.count == seen
    assert [one.event.stream_version for one in again] == [2 + 2 * MANY]

    await theirs.append(request(execution_id, note("theirs")))
    await ours.append(request(execution_id, *notes("d")))
    repeated = await ours.append(request(execution_id, *notes("b")))

    assert looks.count > seen
    assert overtaken.written[:3] == [True, True, False], "somebody else has moved it since"
    assert all(one.duplicate for one in repeated)
    assert await keys(ours, execution_id) == ["start", *names("a"), *names("b"), "c", "theirs", *names("d")]


async def test_a_large_batch_is_written_at_once_with_everything_around_it(
    ours: GroupCommit, overtaken: Overtaken, pool: ConnectionPool, admin: asyncpg.Connection
) -> None:
    heard: list[str] = []
    await admin.add_listener("noetl_commit", lambda *told: heard.append(told[-1]))
    leases = PostgresShardLeases(pool)
    old, new = await start(ours), new_id()
    shard = shard_of(old, SHARDS)
    held = await leases.hold(planner("1"), lease_seconds=30)
    epoch = next(lease.epoch for lease in held.leases if lease.shard == shard)
    items = [
        Draft(event_type="x.y", idempotency_key=f"i{n}", aggregate_type="item", aggregate_id='it\'s \\ "ü"')
        for n in range(3)
    ]
    append = AppendRequest(
        tenant_id=ACME.tenant_id,
        organization_id=ACME.organization_id,
        streams=(
            StreamAppend(execution_id=old, drafts=(*notes("a"), *items)),
            StreamAppend(execution_id=new, drafts=(note("first"),), start=StreamStart(start_key='it\'s \\ "once"')),
        ),
        fence=Fence(role="planner", shard=shard, epoch=epoch),
        hints=(Hint(subject='noetl.work.it\'s \\ "ü"', body=b"\x00'\\", execution_id=old, message_id="m'\\"),),
    )

    appended = await ours.append(append)

    assert overtaken.written == [True]
    assert await keys(ours, old) == ["start", *names("a"), "i0", "i1", "i2"]
    assert await keys(ours, new) == ["first"]
    assert [one.event.aggregate_version for one in appended[-4:-1]] == [1, 2, 3]
    outbox = await admin.fetch(
        "SELECT execution_id, first_version, last_version, subject, message_id, body FROM noetl.outbox "
        "ORDER BY outbox_id OFFSET 1"
    )
    assert [tuple(row) for row in outbox] == [
        (old, 2, MANY + 4, None, None, None),
        (new, 1, 1, None, None, None),
        (old, None, None, 'noetl.work.it\'s \\ "ü"', "m'\\", b"\x00'\\"),
    ]
    head = await admin.fetchrow("SELECT * FROM noetl.stream WHERE execution_id = $1", old)
    last = appended[-2].event
    assert head is not None
    assert (head["version"], head["last_checksum"]) == (last.stream_version, last.checksum)
    assert (head["last_ingest_time"], head["terminal"]) == (last.ingest_time, False)
    taken = await admin.fetchrow("SELECT * FROM noetl.start_key")
    assert taken is not None
    assert (taken["start_key"], taken["execution_id"]) == ('it\'s \\ "once"', new)
    await asyncio.sleep(0.05)
    assert sorted(moved_streams(heard[-1]) or ()) == sorted([(old, MANY + 4), (new, 1)])
    again = await ours.append(append)
    assert all(one.duplicate for one in again)
    assert overtaken.written == [True]


async def test_an_overtaken_batch_follows_what_was_first_and_those_after_it_wait_for_their_locks(
    pool: ConnectionPool, theirs: GroupCommit, overtaken: Overtaken, admin: asyncpg.Connection
) -> None:
    ours = replica(pool, overtaken, remembered=RememberedStreams(most=0), node=7)
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("theirs")))

    await ours.append(request(execution_id, *notes("a")))

    assert overtaken.written == [False]
    assert await keys(ours, execution_id) == ["start", "theirs", *names("a")]
    for number in range(LOCKED_BATCHES):
        await ours.append(request(execution_id, *notes(f"{number}/")))
    assert overtaken.written == [False, True]
    told = await admin.fetchval("SELECT sum(last_version - first_version + 1) FROM noetl.outbox")
    assert told == len(await keys(ours, execution_id)) == 2 + MANY * (LOCKED_BATCHES + 1)


async def test_that_memory_was_wrong_is_no_reason_to_wait_for_locks(
    pool: ConnectionPool, theirs: GroupCommit, overtaken: Overtaken, looks: Looks
) -> None:
    ours = replica(pool, overtaken, looks, node=7)
    moved, still = await start(ours), await start(ours)
    await theirs.append(request(moved, note("theirs")))
    streams = tuple(request(execution_id, *notes("a")).streams[0] for execution_id in (moved, still))
    await ours.append(AppendRequest(tenant_id=ACME.tenant_id, organization_id=ACME.organization_id, streams=streams))
    seen = looks.count

    await ours.append(request(moved, *notes("b")))
    assert looks.count == seen + 1, "that one is not known from its start on any more"
    await ours.append(request(still, *notes("b")))

    assert looks.count == seen + 1, "the other one is"
    assert overtaken.written == [False, True, True, True]
    assert await keys(ours, moved) == ["start", "theirs", *names("a"), *names("b")]
    assert await keys(ours, still) == ["start", *names("a"), *names("b")]


@pytest.mark.parametrize("count", [1, MANY])
async def test_a_head_of_the_same_version_that_was_reached_by_another_way_is_another_head(
    pool: ConnectionPool, theirs: GroupCommit, looks: Looks, admin: asyncpg.Connection, count: int
) -> None:
    ours = replica(pool, looks=looks, node=7)
    execution_id = await start(ours)
    await ours.append(request(execution_id, note("lost")))
    # What a standby may do that takes over without the last commits.
    await admin.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND stream_version = 2", execution_id)
    await admin.execute(
        "UPDATE noetl.stream AS stream SET version = 1, last_checksum = event.checksum FROM noetl.event AS event "
        "WHERE stream.execution_id = $1 AND event.execution_id = $1",
        execution_id,
    )
    await theirs.append(request(execution_id, note("found")))

    await ours.append(request(execution_id, *notes("a")[:count]))

    assert await keys(ours, execution_id) == ["start", "found", *names("a")[:count]], "and the chain holds"


async def test_a_start_key_that_another_replica_has_does_not_take_a_large_batch_apart(
    pool: ConnectionPool, theirs: GroupCommit, overtaken: Overtaken, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PostgresEventLog(pool, copied=overtaken, optimistic=looks)
    ours = replica(pool, overtaken, looks, node=7)
    monkeypatch.setattr(ours, "_log", log)
    alone: list[PreparedRequest] = []
    monkeypatch.setattr(log, "_commit_alone", alone.append)
    taken = new_id()
    await theirs.append(_started(taken, "once"))
    await start(ours)  # from here on it knows what time it is

    for turn in range(2):
        new = [new_id() for _ in range(MANY)]
        answers = await asyncio.gather(
            *(ours.append(_started(one, f"{one}")) for one in new), ours.append(_started(new_id(), "once"))
        )
        (known,) = answers.pop()
        assert known.duplicate
        assert known.event.envelope().execution_id == taken
        assert not any(one.duplicate for (one,) in answers)
        assert [await keys(ours, one) for one in new] == [["first"]] * MANY, turn

    assert alone == []
    assert looks.count == 3, "for the time, for the key that an index refused, and when that key came again"


def _started(execution_id: int, key: str) -> AppendRequest:
    stream = StreamAppend(execution_id=execution_id, drafts=(note("first"),), start=StreamStart(start_key=key))
    return AppendRequest(tenant_id=ACME.tenant_id, organization_id=ACME.organization_id, streams=(stream,))


async def test_a_batch_over_several_streams_is_whole_when_one_of_them_moved(
    ours: GroupCommit,
    theirs: GroupCommit,
    overtaken: Overtaken,
    remembers: bool,
) -> None:
    first, second = await start(ours), await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(second, note("a3")))
    streams = tuple(request(execution_id, *notes("a")).streams[0] for execution_id in (second, first))
    append = AppendRequest(tenant_id=ACME.tenant_id, organization_id=ACME.organization_id, streams=streams)

    appended = await ours.append(append)

    assert overtaken.written == ([False, True] if remembers else [False]), "who only remembered them looks first"
    assert await keys(ours, first) == ["start", *names("a")]
    assert await keys(ours, second) == ["start", "a3", *(name for name in names("a") if name != "a3")]
    assert [one.duplicate for one in appended].index(True) == 3


async def test_an_owner_that_is_deposed_meanwhile_writes_nothing(
    ours: GroupCommit, overtaken: Overtaken, pool: ConnectionPool
) -> None:
    leases = PostgresShardLeases(pool)
    execution_id = await start(ours)
    shard = shard_of(execution_id, SHARDS)
    held = await leases.hold(planner("1"), lease_seconds=30)
    epoch = next(lease.epoch for lease in held.leases if lease.shard == shard)
    overtaken.meanwhile = lambda: leases.hold(planner("2"), lease_seconds=30)

    with pytest.raises(Fenced):
        await ours.append(request(execution_id, *notes("a"), fence=Fence(role="planner", shard=shard, epoch=epoch)))

    assert overtaken.written == [False]
    assert await keys(ours, execution_id) == ["start"]


async def test_an_expected_version_that_is_passed_meanwhile_is_a_conflict(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken
) -> None:
    execution_id = await start(ours)
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("theirs")))

    with pytest.raises(VersionConflict):
        await ours.append(request(execution_id, *notes("a"), expected_stream_version=1))

    assert await keys(ours, execution_id) == ["start", "theirs"]


async def test_an_id_that_is_taken_meanwhile_is_refused_and_nothing_of_the_batch_stays_behind(
    ours: GroupCommit, theirs: GroupCommit, overtaken: Overtaken, admin: asyncpg.Connection
) -> None:
    execution_id = new_id()
    overtaken.meanwhile = lambda: theirs.append(request(execution_id, note("theirs"), start=StreamStart()))

    with pytest.raises(AlreadyExists):
        await ours.append(request(execution_id, *notes("a"), start=StreamStart()))

    assert await keys(ours, execution_id) == ["theirs"]
    assert await admin.fetchval("SELECT count(*) FROM noetl.outbox") == 1


async def test_a_text_that_the_database_cannot_hold_is_refused_without_harm_to_other_requests(
    ours: GroupCommit,
) -> None:
    execution_id, other = await start(ours), await start(ours)
    bad = replace(
        request(execution_id, *notes("a")),
        hints=(Hint(subject="noetl.work.\0", body=b"", execution_id=execution_id),),
    )

    blocking, refused, taken = await asyncio.gather(
        ours.append(request(other, note("first"))),
        ours.append(bad),
        ours.append(request(other, *notes("b"))),
        return_exceptions=True,
    )

    assert not isinstance(blocking, BaseException)
    assert isinstance(refused, InvalidInput)
    assert not isinstance(taken, BaseException)
    assert await keys(ours, execution_id) == ["start"]
    assert await keys(ours, other) == ["start", "first", *names("b")]


async def test_a_session_that_has_lost_its_statements_gets_them_again(api_dsn: str, overtaken: Overtaken) -> None:
    pool = await open_pool(api_dsn, min_size=1, max_size=1, application_name="test", settings=LOOKUPS)
    try:
        ours = replica(pool, overtaken, node=7)
        execution_id = await start(ours)
        await ours.append(request(execution_id, *notes("a")))
        async with pool.acquire() as connection:
            await connection.execute("DEALLOCATE noetl_claim; DEALLOCATE noetl_settle")

        await ours.append(request(execution_id, *notes("b")))

        assert overtaken.written == [True, True]
        assert await keys(ours, execution_id) == ["start", *names("a"), *names("b")]
    finally:
        await pool.close()
