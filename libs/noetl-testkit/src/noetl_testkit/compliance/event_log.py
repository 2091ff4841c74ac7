"""What every canonical log must do; an adapter's tests subclass this and supply a log and the leases that fence it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.append import (
    END_KEY,
    Appended,
    AppendRequest,
    Fence,
    Hint,
    StreamAppend,
    StreamStart,
)
from noetl_core.envelope import Draft, StoredEvent, verify_link
from noetl_core.errors import (
    AlreadyExists,
    AlreadyTerminal,
    Fenced,
    InvalidInput,
    KeyTaken,
    NoetlError,
    NotFound,
    TooEarly,
    VersionConflict,
)
from noetl_core.ids import Snowflake
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.leases import Replica, ShardLeases
from noetl_core.sharding import shard_of

ACME = Scope(tenant_id="acme", organization_id="ops")
RIVAL = Scope(tenant_id="rival", organization_id="ops")
SHARDS = 64

_ids = Snowflake(1023)


def new_id() -> int:
    """An id as api makes them: of this moment, so that its partition exists."""
    return _ids.next(int(time.time() * 1000))


def note(key: str, **fields: Any) -> Draft:
    """An event that means nothing to NoETL."""
    return Draft(event_type="user.note", idempotency_key=key, **fields)


def request(execution_id: int, *drafts: Draft, scope: Scope = ACME, **fields: Any) -> AppendRequest:
    """An append to one stream."""
    stream_fields = {name: fields.pop(name) for name in ("start", "expected_stream_version") if name in fields}
    stream = StreamAppend(execution_id=execution_id, drafts=drafts, **stream_fields)
    return AppendRequest(tenant_id=scope.tenant_id, organization_id=scope.organization_id, streams=(stream,), **fields)


async def start(log: EventLog, *, scope: Scope = ACME, execution_id: int | None = None) -> int:
    """A new execution with one event."""
    execution_id = execution_id or new_id()
    await log.append(request(execution_id, note("start"), scope=scope, start=StreamStart()))
    return execution_id


def chain_holds(events: tuple[StoredEvent, ...]) -> bool:
    """Versions from 1 without a gap, each event sealed to the one before, and time never going back."""
    for place, event in enumerate(events, start=1):
        before = events[place - 2] if place > 1 else None
        verify_link(event)
        assert event.stream_version == place
        assert event.prev_checksum == (before.checksum if before else "")
        assert before is None or event.ingest_time >= before.ingest_time
    return True


async def history(log: EventLog, execution_id: int) -> tuple[StoredEvent, ...]:
    """Everything that an execution has."""
    events: tuple[StoredEvent, ...] = ()
    while True:
        page = await log.read(None, execution_id, from_version=len(events) + 1, limit=1000)
        events += page.events
        if len(events) >= page.head_version:
            return events


async def refused(log: EventLog, append: AppendRequest) -> NoetlError:
    with pytest.raises(NoetlError) as refusal:
        await log.append(append)
    return refusal.value


class EventLogCompliance(ABC):
    """One suite, run by every log and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def log(self, leases: ShardLeases) -> EventLog:
        """An empty log with 64 shards, fenced by these leases."""

    @pytest.fixture
    @abstractmethod
    def leases(self) -> ShardLeases:
        """Shard leases that nobody holds."""

    async def test_events_get_versions_and_a_chain(self, log: EventLog) -> None:
        execution_id = await start(log)

        appended = await log.append(request(execution_id, note("a"), note("b"), note("c")))

        assert [one.event.stream_version for one in appended] == [2, 3, 4]
        assert not any(one.duplicate for one in appended)
        events = await history(log, execution_id)
        assert [event.envelope().idempotency_key for event in events] == ["start", "a", "b", "c"]
        assert chain_holds(events)

    async def test_an_event_is_read_as_it_was_written(self, log: EventLog) -> None:
        execution_id = await start(log)
        moment = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
        result = {"status": "ok", "reference": None, "parent_ref": None, "context": {"n": 1.5, "text": "é\0"}}
        written = note(
            "k",
            event_time=moment,
            node_name="step one",
            causation_id="c",
            correlation_id="d",
            meta={"list": [1, "zwei", None], "deep": {"x": {}}},
            result=result,
            trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )

        (appended,) = await log.append(request(execution_id, written, producer="urn:test"))

        (_, stored) = await history(log, execution_id)
        assert stored == appended.event
        envelope = stored.envelope()
        assert (envelope.tenant_id, envelope.organization_id) == ("acme", "ops")
        assert (envelope.execution_id, envelope.event_type) == (execution_id, "user.note")
        assert (envelope.event_time, envelope.node_name) == (moment, "step one")
        assert (envelope.result, envelope.meta) == (result, written.meta)
        assert (envelope.producer, envelope.trace) == ("urn:test", written.trace)

    async def test_the_same_key_and_content_is_one_event(self, log: EventLog) -> None:
        execution_id = await start(log)
        (first,) = await log.append(request(execution_id, note("k", meta={"n": 1})))

        (again,) = await log.append(request(execution_id, note("k", meta={"n": 1}, trace="other")))

        assert again == Appended(event=first.event, duplicate=True)
        assert len(await history(log, execution_id)) == 2

    async def test_the_same_key_with_other_content_names_the_winner(self, log: EventLog) -> None:
        execution_id = await start(log)
        (first,) = await log.append(request(execution_id, note("k", meta={"n": 1})))

        refusal = await refused(log, request(execution_id, note("k", meta={"n": 2})))

        assert isinstance(refusal, KeyTaken)
        assert refusal.event_id == str(first.event.envelope().event_id)
        assert refusal.stream_version == 2

    async def test_a_key_belongs_to_its_execution(self, log: EventLog) -> None:
        one, other = await start(log), await start(log)

        await log.append(request(one, note("k", meta={"n": 1})))
        await log.append(request(other, note("k", meta={"n": 2})))

        assert len(await history(log, one)) == len(await history(log, other)) == 2

    async def test_a_key_twice_in_one_request_is_one_event(self, log: EventLog) -> None:
        execution_id = await start(log)

        first, second = await log.append(request(execution_id, note("k"), note("k")))

        assert (first.duplicate, second.duplicate) == (False, True)
        assert second.event == first.event

    async def test_twenty_callers_with_one_key_make_one_event(self, log: EventLog) -> None:
        execution_id = await start(log)

        outcomes = await asyncio.gather(*(log.append(request(execution_id, note("k"))) for _ in range(20)))

        assert sum(not one.duplicate for (one,) in outcomes) == 1
        assert len({one.event.checksum for (one,) in outcomes}) == 1

    async def test_two_hundred_concurrent_appends_leave_no_gap(self, log: EventLog) -> None:
        execution_id = await start(log)

        await asyncio.gather(*(log.append(request(execution_id, note(f"k{n}"))) for n in range(200)))

        events = await history(log, execution_id)
        assert len(events) == 201
        assert chain_holds(events)
        assert len({event.envelope().idempotency_key for event in events}) == 201

    async def test_a_partly_repeated_request_adds_only_what_is_new(self, log: EventLog) -> None:
        execution_id = await start(log)
        await log.append(request(execution_id, note("a"), note("b")))

        outcomes = await log.append(request(execution_id, note("a"), note("b"), note("c")))

        assert [one.duplicate for one in outcomes] == [True, True, False]
        assert [one.event.stream_version for one in outcomes] == [2, 3, 4]

    async def test_the_expected_stream_version_decides_who_wins(self, log: EventLog) -> None:
        execution_id = await start(log)

        outcomes = await asyncio.gather(
            *(log.append(request(execution_id, note(f"k{n}"), expected_stream_version=1)) for n in range(10)),
            return_exceptions=True,
        )

        conflicts = [one for one in outcomes if isinstance(one, VersionConflict)]
        assert len(conflicts) == 9
        assert {(one.expected, one.current) for one in conflicts} == {(1, 2)}

    async def test_a_repeated_request_is_answered_although_its_version_has_passed(self, log: EventLog) -> None:
        execution_id = await start(log)
        once = request(execution_id, note("a"), expected_stream_version=1)
        (first,) = await log.append(once)

        (again,) = await log.append(once)

        assert again == Appended(event=first.event, duplicate=True)

    async def test_aggregates_count_their_own_events(self, log: EventLog) -> None:
        execution_id = await start(log)

        def about(command: str, key: str, expected: int | None = None) -> Draft:
            return note(key, aggregate_type="command", aggregate_id=command, expected_aggregate_version=expected)

        appended = await log.append(
            request(execution_id, about("c1", "1", 0), about("c2", "2"), about("c1", "3", 1), note("4"))
        )
        conflict = await refused(log, request(execution_id, about("c1", "5", 1)))

        assert [one.event.aggregate_version for one in appended] == [1, 1, 2, 5]
        assert isinstance(conflict, VersionConflict)
        assert conflict.current == 2

    async def test_a_request_over_several_streams_is_all_or_nothing(self, log: EventLog) -> None:
        one, other = await start(log), await start(log)
        both = AppendRequest(
            tenant_id="acme",
            organization_id="ops",
            streams=(
                StreamAppend(execution_id=one, drafts=(note("a"),)),
                StreamAppend(execution_id=other, drafts=(note("b"),), expected_stream_version=7),
            ),
        )

        refusal = await refused(log, both)

        assert isinstance(refusal, VersionConflict)
        assert len(await history(log, one)) == len(await history(log, other)) == 1

    async def test_a_request_over_several_streams_may_start_one_of_them(self, log: EventLog) -> None:
        parent, child = await start(log), new_id()
        both = AppendRequest(
            tenant_id="acme",
            organization_id="ops",
            streams=(
                StreamAppend(execution_id=parent, drafts=(note("child"),)),
                StreamAppend(
                    execution_id=child, drafts=(note("start"),), start=StreamStart(parent_execution_id=parent)
                ),
            ),
        )

        first = await log.append(both)
        again = await log.append(both)

        assert [one.duplicate for one in again] == [True, True]
        assert [one.event for one in again] == [one.event for one in first]
        assert (await history(log, child))[0].envelope().parent_execution_id == str(parent)

    async def test_a_refused_request_harms_no_other(self, log: EventLog) -> None:
        execution_id = await start(log)
        good = [request(execution_id, note(f"k{n}")) for n in range(20)]
        bad = [request(execution_id, note("start", meta={"other": True})) for _ in range(20)]
        mixed = [one for pair in zip(good, bad, strict=True) for one in pair]

        outcomes = await asyncio.gather(*(log.append(one) for one in mixed), return_exceptions=True)

        assert sum(isinstance(one, KeyTaken) for one in outcomes) == 20
        assert chain_holds(await history(log, execution_id))
        assert len(await history(log, execution_id)) == 21

    async def test_a_command_is_issued_once_whatever_its_keys(self, log: EventLog) -> None:
        execution_id = await start(log)

        def issue(key: str) -> AppendRequest:
            return request(
                execution_id,
                Draft(
                    event_type="command.issued",
                    idempotency_key=key,
                    aggregate_type="command",
                    aggregate_id="c1",
                    command_id="c1",
                ),
            )

        outcomes = await asyncio.gather(
            log.append(issue("one")),
            log.append(request(execution_id, note("bystander"))),
            log.append(issue("two")),
            return_exceptions=True,
        )

        assert sum(isinstance(one, AlreadyExists) for one in outcomes) == 1
        assert not isinstance(outcomes[1], BaseException)
        assert len(await history(log, execution_id)) == 3

    @pytest.mark.parametrize(
        ("event_type", "field"),
        [("loop.done", "loop_id"), ("loop.fanin.completed", "epoch_id"), ("checkpoint.committed", "epoch_id")],
    )
    async def test_named_events_happen_once(self, log: EventLog, event_type: str, field: str) -> None:
        execution_id = await start(log)

        def happen(key: str, value: str) -> AppendRequest:
            return request(execution_id, Draft(event_type=event_type, idempotency_key=key, meta={field: value}))

        await log.append(happen("one", "a"))
        await log.append(happen("two", "b"))

        assert isinstance(await refused(log, happen("three", "a")), AlreadyExists)

    async def test_exactly_one_terminal_event_wins(self, log: EventLog) -> None:
        execution_id = await start(log)

        def end(event_type: str) -> AppendRequest:
            return request(execution_id, Draft(event_type=event_type, idempotency_key=END_KEY))

        kinds = ["playbook.completed", "playbook.failed", "execution.cancelled"] * 5
        outcomes = await asyncio.gather(*(log.append(end(kind)) for kind in kinds), return_exceptions=True)

        winners = [one for one in outcomes if not isinstance(one, BaseException)]
        assert sum(not one.duplicate for (one,) in winners) == 1
        assert all(isinstance(one, AlreadyTerminal) for one in outcomes if isinstance(one, BaseException))
        page = await log.read(ACME, execution_id)
        assert page.terminal
        assert page.head_version == 2

    async def test_nothing_follows_the_terminal_event_but_what_may(self, log: EventLog) -> None:
        execution_id = await start(log)
        await log.append(request(execution_id, Draft(event_type="playbook.completed", idempotency_key=END_KEY)))

        refusal = await refused(log, request(execution_id, note("late")))
        (repeated,) = await log.append(request(execution_id, note("start")))
        (retired,) = await log.append(
            request(execution_id, Draft(event_type="execution.retired", idempotency_key="retired"))
        )

        assert isinstance(refusal, AlreadyTerminal)
        assert repeated.duplicate
        assert retired.event.stream_version == 3

    async def test_a_fence_lets_only_the_owner_write(self, log: EventLog, leases: ShardLeases) -> None:
        execution_id = await start(log)
        shard = shard_of(execution_id, SHARDS)
        first = Replica(role="planner", instance="p-0", incarnation="1", address="a:1")
        reborn = Replica(role="planner", instance="p-0", incarnation="2", address="a:2")

        held = await leases.hold(first, lease_seconds=30)
        old = next(lease.epoch for lease in held.leases if lease.shard == shard)
        await log.append(request(execution_id, note("a"), fence=Fence(role="planner", shard=shard, epoch=old)))
        await leases.hold(reborn, lease_seconds=30)
        deposed = await refused(
            log, request(execution_id, note("b"), fence=Fence(role="planner", shard=shard, epoch=old))
        )
        await log.append(request(execution_id, note("c"), fence=Fence(role="planner", shard=shard, epoch=old + 1)))

        assert isinstance(deposed, Fenced)
        keys = [event.envelope().idempotency_key for event in await history(log, execution_id)]
        assert keys == ["start", "a", "c"]

    async def test_nothing_is_written_for_an_asker_that_was_deposed(self, log: EventLog, leases: ShardLeases) -> None:
        """By the lease of his own, whatever that of the writer says; the others of the batch do not mind."""
        execution_id = await start(log)
        shard = shard_of(execution_id, SHARDS)
        planner = await leases.hold(
            Replica(role="planner", instance="p-0", incarnation="1", address="a:1"), lease_seconds=30
        )
        writer = next(lease for lease in planner.leases if lease.shard == shard)
        fence = Fence(role="planner", shard=shard, epoch=writer.epoch)
        elected = await leases.hold(
            Replica(role="reaper", instance="r-0", incarnation="1", address="r:1"), lease_seconds=30
        )
        asker = Fence(role="reaper", shard=0, epoch=elected.leases[0].epoch)
        asked = request(execution_id, note("asked"), fence=fence, asked_by=asker)
        await log.append(asked)
        await leases.hold(Replica(role="reaper", instance="r-0", incarnation="2", address="r:2"), lease_seconds=30)

        deposed, again, own, next_one = await asyncio.gather(
            refused(log, request(execution_id, note("late"), fence=fence, asked_by=asker)),
            log.append(asked),
            log.append(request(execution_id, note("own"), fence=fence)),
            log.append(
                request(
                    execution_id,
                    note("next"),
                    fence=fence,
                    asked_by=Fence(role="reaper", shard=0, epoch=asker.epoch + 1),
                )
            ),
        )

        assert isinstance(deposed, Fenced)
        assert deposed.facts["role"] == "reaper"
        assert again[0].duplicate
        assert not own[0].duplicate
        assert not next_one[0].duplicate
        keys = {event.envelope().idempotency_key for event in await history(log, execution_id)}
        assert keys == {"start", "asked", "own", "next"}

    async def test_a_deposed_owner_still_learns_what_it_wrote_before(self, log: EventLog, leases: ShardLeases) -> None:
        execution_id = await start(log)
        shard = shard_of(execution_id, SHARDS)
        replica = Replica(role="planner", instance="p-0", incarnation="1", address="a:1")
        held = await leases.hold(replica, lease_seconds=30)
        epoch = next(lease.epoch for lease in held.leases if lease.shard == shard)
        once = request(execution_id, note("a"), fence=Fence(role="planner", shard=shard, epoch=epoch))
        await log.append(once)
        await leases.hold(Replica(role="planner", instance="p-0", incarnation="2", address="a"), lease_seconds=30)

        (again,) = await log.append(once)

        assert again.duplicate

    async def test_a_fence_of_another_shard_is_refused(self, log: EventLog) -> None:
        execution_id = await start(log)
        wrong = (shard_of(execution_id, SHARDS) + 1) % SHARDS

        refusal = await refused(
            log, request(execution_id, note("a"), fence=Fence(role="planner", shard=wrong, epoch=0))
        )

        assert isinstance(refusal, InvalidInput)

    async def test_what_comes_too_early_is_refused_by_the_logs_own_clock(self, log: EventLog) -> None:
        execution_id = await start(log)
        now = (await log.read(None, execution_id)).events[0].ingest_time

        early = await refused(log, request(execution_id, note("a", not_before=now + timedelta(hours=1))))
        await log.append(request(execution_id, note("b", not_before=now)))

        assert isinstance(early, TooEarly)

    async def test_another_tenants_execution_does_not_exist(self, log: EventLog) -> None:
        execution_id = await start(log)

        write = await refused(log, request(execution_id, note("a"), scope=RIVAL))
        with pytest.raises(NotFound) as read:
            await log.read(RIVAL, execution_id)
        with pytest.raises(NotFound) as unknown:
            await log.read(RIVAL, new_id())

        assert isinstance(write, NotFound)
        assert write.code == read.value.code == unknown.value.code == "execution.not_found"

    async def test_an_unknown_execution_takes_no_events(self, log: EventLog) -> None:
        assert isinstance(await refused(log, request(new_id(), note("a"))), NotFound)

    async def test_an_execution_starts_once(self, log: EventLog) -> None:
        execution_id = await start(log)

        other = await refused(log, request(execution_id, note("other"), start=StreamStart()))
        rival = await refused(log, request(execution_id, note("start"), scope=RIVAL, start=StreamStart()))
        (again,) = await log.append(request(execution_id, note("start"), start=StreamStart()))

        assert isinstance(other, AlreadyExists)
        assert isinstance(rival, AlreadyExists)
        assert again.duplicate

    async def test_concurrent_starts_under_one_key_are_one_execution(self, log: EventLog) -> None:
        starts = [
            request(new_id(), note("start", meta={"n": n}), start=StreamStart(start_key="order/1")) for n in range(20)
        ]

        outcomes = await asyncio.gather(*(log.append(one) for one in starts))

        assert sum(not one.duplicate for (one,) in outcomes) == 1
        assert len({one.event.envelope().execution_id for (one,) in outcomes}) == 1

    async def test_a_start_key_belongs_to_its_tenant_and_organization(self, log: EventLog) -> None:
        scopes = (ACME, RIVAL, Scope(tenant_id="acme", organization_id="sales"))

        outcomes = [
            await log.append(request(new_id(), note("s"), scope=scope, start=StreamStart(start_key="k")))
            for scope in scopes
        ]

        assert not any(one.duplicate for (one,) in outcomes)

    async def test_bad_values_are_refused_and_leave_no_trace(self, log: EventLog) -> None:
        execution_id = await start(log)
        bad = [
            note("\0"),
            note("k", command_id="a\0b"),
            note("k" * 600),
            note("k", result={"status": "ok", "rows": []}),
            note("k", result={"status": "ok", "context": {"rows": [1]}}),
            note("k", result={"status": "fine"}),
            note("k", meta={"text": "x" * 70_000}),
            note("k", meta={"nan": float("nan")}),
            Draft(event_type="no spaces", idempotency_key="k"),
            Draft(event_type="playbook.completed", idempotency_key="k"),
            note(END_KEY),
        ]

        for draft in bad:
            assert isinstance(await refused(log, request(execution_id, draft)), InvalidInput)

        assert len(await history(log, execution_id)) == 1

    async def test_a_hint_follows_an_execution_of_its_request(self, log: EventLog) -> None:
        execution_id = await start(log)
        foreign = Hint(subject="noetl.work.default.command", body=b"{}", execution_id=execution_id + 1)

        assert isinstance(await refused(log, request(execution_id, note("a"), hints=(foreign,))), InvalidInput)

    async def test_reading_is_paged_by_version(self, log: EventLog) -> None:
        execution_id = await start(log)
        await log.append(request(execution_id, *(note(f"k{n}") for n in range(9))))

        first = await log.read(ACME, execution_id, limit=4)
        middle = await log.read(ACME, execution_id, from_version=5, to_version=7, limit=100)
        beyond = await log.read(ACME, execution_id, from_version=11)
        nothing = await log.read(ACME, execution_id, limit=0)

        assert [event.stream_version for event in first.events] == [1, 2, 3, 4]
        assert [event.stream_version for event in middle.events] == [5, 6, 7]
        assert beyond.events == nothing.events == ()
        assert {page.head_version for page in (first, middle, beyond, nothing)} == {10}

    async def test_heads_that_moved_are_listed_by_the_time_of_their_move(self, log: EventLog) -> None:
        ids = [await start(log) for _ in range(6)]
        await log.append(request(ids[0], note("again")))
        await log.append(request(ids[1], Draft(event_type="playbook.completed", idempotency_key=END_KEY)))
        shards = range(SHARDS)

        everything = await log.moved_heads(shards, moved_since=None, after=None, open_only=False, limit=100)
        still_open = await log.moved_heads(shards, moved_since=None, after=None, open_only=True, limit=100)
        since = everything.heads[3].updated_at
        recent = await log.moved_heads(shards, moved_since=since, after=None, open_only=False, limit=100)
        none = await log.moved_heads((), moved_since=None, after=None, open_only=False, limit=100)

        assert [head.execution_id for head in everything.heads] == [*ids[2:], ids[0], ids[1]]
        assert [head.execution_id for head in still_open.heads] == [*ids[2:], ids[0]]
        assert recent.heads == everything.heads[3:]
        assert none.heads == ()
        assert everything.now >= everything.heads[-1].updated_at
        last = everything.heads[-1]
        assert (last.version, last.terminal, last.shard) == (2, True, shard_of(ids[1], SHARDS))

    async def test_a_listing_of_heads_can_be_continued(self, log: EventLog) -> None:
        ids = [await start(log) for _ in range(5)]
        found: list[int] = []
        after: tuple[datetime, int] | None = None

        while True:
            page = await log.moved_heads(range(SHARDS), moved_since=None, after=after, open_only=False, limit=2)
            found += [head.execution_id for head in page.heads]
            if not page.more:
                break
            after = (page.heads[-1].updated_at, page.heads[-1].execution_id)

        assert found == ids
