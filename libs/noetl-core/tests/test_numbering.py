"""The verdict over a batch, held against a model that takes requests one at a time and keeps everything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.append import (
    END_KEY,
    Appended,
    AppendRequest,
    Fence,
    Head,
    Hint,
    KnownKey,
    LogView,
    Numbered,
    PreparedRequest,
    StreamAppend,
    StreamStart,
    prepare,
)
from noetl_core.envelope import EXECUTION_AGGREGATE, Draft, StoredEvent, verify_link
from noetl_core.errors import (
    AlreadyExists,
    AlreadyTerminal,
    Fenced,
    KeyTaken,
    NoetlError,
    NotFound,
    VersionConflict,
)
from noetl_core.numbering import number
from noetl_core.sharding import shard_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Outcome = tuple[Appended, ...] | NoetlError


class Log:
    """A log of plain dictionaries: what the database would hold."""

    def __init__(self) -> None:
        self.now = NOON
        self.heads: dict[int, Head] = {}
        self.events: dict[int, list[StoredEvent]] = {}
        self.keys: dict[tuple[int, str], KnownKey] = {}
        self.aggregates: dict[tuple[int, str], int] = {}
        self.started: dict[tuple[str, str, str], KnownKey] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self._ids = count(1000)

    def prepared(self, request: AppendRequest) -> PreparedRequest:
        return prepare(request, next_event_id=lambda: next(self._ids), now=NOON, shard_count=4)

    def commit(self, requests: Sequence[AppendRequest]) -> tuple[Outcome, ...]:
        self.now += timedelta(seconds=1)
        view = LogView(
            now=self.now,
            heads=dict(self.heads),
            keys=dict(self.keys),
            aggregate_versions=dict(self.aggregates),
            epochs=dict(self.epochs),
            started=dict(self.started),
        )
        numbered = number([self.prepared(request) for request in requests], view)
        self._write(numbered)
        return numbered.outcomes

    def _write(self, numbered: Numbered) -> None:
        for head in (*numbered.heads, *(head for head, _ in numbered.created)):
            self.heads[head.execution_id] = head
        for placed in numbered.events:
            execution_id, draft = placed.head.execution_id, placed.prepared.draft
            self.events.setdefault(execution_id, []).append(placed.stored)
            assert (execution_id, draft.idempotency_key) not in self.keys
            self.keys[(execution_id, draft.idempotency_key)] = KnownKey(
                placed.prepared.content_sha256, placed.prepared.event_id, placed.stored
            )
            if draft.aggregate_type != EXECUTION_AGGREGATE:
                self.aggregates[(execution_id, placed.aggregate_id)] = placed.stored.aggregate_version
        for head, start in numbered.created:
            if start.start_key:
                first = self.events[head.execution_id][0]
                envelope = first.envelope()
                self.started[(head.tenant_id, head.organization_id, start.start_key)] = KnownKey(
                    envelope.content_sha256, envelope.event_id, first
                )


def note(key: str, **fields: Any) -> Draft:
    return Draft(event_type="user.note", idempotency_key=key, **fields)


def request(execution_id: int, *drafts: Draft, tenant: str = "acme", **fields: Any) -> AppendRequest:
    own = {name: fields.pop(name) for name in ("start", "expected_stream_version") if name in fields}
    stream = StreamAppend(execution_id=execution_id, drafts=drafts, **own)
    return AppendRequest(tenant_id=tenant, organization_id="ops", streams=(stream,), **fields)


def about_command(key: str, **fields: Any) -> Draft:
    return note(key, aggregate_type="command", aggregate_id="c", **fields)


def started_log(*execution_ids: int) -> Log:
    log = Log()
    log.commit([request(execution_id, note("start"), start=StreamStart()) for execution_id in execution_ids])
    return log


drafts = st.builds(
    lambda key, content, kind, expected: note(
        key,
        meta={"content": content},
        aggregate_type=kind,
        aggregate_id="" if kind == EXECUTION_AGGREGATE else f"{kind}-1",
        expected_aggregate_version=expected if kind != EXECUTION_AGGREGATE else None,
    ),
    st.sampled_from("abcdefgh"),
    st.integers(0, 1),
    st.sampled_from([EXECUTION_AGGREGATE, "command"]),
    st.sampled_from([None, None, 0, 1, 2]),
) | st.sampled_from(
    [
        Draft(event_type=kind, idempotency_key=END_KEY, meta={"error": {}})
        for kind in ("playbook.completed", "playbook.failed")
    ]
)
streams = st.builds(
    lambda execution_id, drafts, expected, start: StreamAppend(
        execution_id=execution_id,
        drafts=tuple(drafts[:1]) if start and start.start_key else tuple(drafts),
        expected_stream_version=expected,
        start=start,
    ),
    st.integers(1, 5),
    st.lists(drafts, min_size=1, max_size=4),
    st.sampled_from([None, None, None, 0, 1, 2, 3]),
    st.sampled_from([None, None, None, StreamStart(), StreamStart(start_key="s")]),
)
requests = st.builds(
    lambda tenant, streams, epoch: AppendRequest(
        tenant_id=tenant,
        organization_id="ops",
        streams=tuple({stream.execution_id: stream for stream in streams}.values()),
        fence=None if epoch is None else Fence(role="planner", shard=shard_of(streams[0].execution_id, 4), epoch=epoch),
    ),
    st.sampled_from(["acme", "acme", "acme", "rival"]),
    st.lists(streams, min_size=1, max_size=3),
    st.sampled_from([None, None, 0, 1]),
)
batches = st.lists(st.lists(requests, min_size=1, max_size=5), min_size=1, max_size=6)


def check(log: Log) -> None:
    """What must hold of any log, whatever was asked of it."""
    for execution_id, events in log.events.items():
        previous = ""
        for place, event in enumerate(events, start=1):
            verify_link(event)
            assert event.stream_version == place
            assert event.prev_checksum == previous
            previous = event.checksum
        assert (log.heads[execution_id].version, log.heads[execution_id].checksum) == (len(events), previous)
        keys = [event.envelope().idempotency_key for event in events]
        assert len(set(keys)) == len(keys)
        assert all(a.ingest_time <= b.ingest_time for a, b in pairwise(events))
        ends = [event for event in events if event.envelope().idempotency_key == END_KEY]
        assert len(ends) <= 1
        assert not ends or ends[0] is events[-1]
        assert log.heads[execution_id].terminal == bool(ends)
        commands = [event.aggregate_version for event in events if event.envelope().aggregate_type == "command"]
        assert commands == list(range(1, len(commands) + 1))


@settings(max_examples=300)
@given(batches=batches)
def test_versions_have_no_gap_chains_verify_and_each_accepted_draft_stands_once(
    batches: list[list[AppendRequest]],
) -> None:
    log = Log()

    for batch in batches:
        before = {execution_id: len(events) for execution_id, events in log.events.items()}
        outcomes = log.commit(batch)
        check(log)
        new = sum(len(events) - before.get(execution_id, 0) for execution_id, events in log.events.items())
        accepted = [one for outcome in outcomes if not isinstance(outcome, NoetlError) for one in outcome]
        assert sum(not one.duplicate for one in accepted) == new
        for request_, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, NoetlError):
                continue
            wanted = [draft for stream in request_.streams for draft in stream.drafts]
            assert len(outcome) == len(wanted)
            for draft, one in zip(wanted, outcome, strict=True):
                envelope = one.event.envelope()
                assert one.event in log.events[envelope.execution_id]
                if draft.idempotency_key != envelope.idempotency_key:  # a start under a key, answered by the first
                    assert one.duplicate
                    assert one.event.stream_version == 1


@settings(max_examples=200)
@given(batches=batches)
def test_a_batch_is_judged_as_its_requests_one_after_the_other(batches: list[list[AppendRequest]]) -> None:
    together, alone = Log(), Log()

    for batch in batches:
        first = together.commit(batch)
        second = tuple(outcome for one in batch for outcome in alone.commit([one]))

        assert [_verdict(outcome) for outcome in first] == [_verdict(outcome) for outcome in second]


def _verdict(outcome: Outcome) -> object:
    if isinstance(outcome, NoetlError):
        return type(outcome)
    return [(one.event.stream_version, one.event.aggregate_version, one.duplicate) for one in outcome]


@given(batch=st.lists(requests, min_size=1, max_size=5))
def test_a_repeated_batch_adds_nothing_where_it_was_accepted(batch: list[AppendRequest]) -> None:
    log = Log()
    first = log.commit(batch)
    events = {execution_id: len(stored) for execution_id, stored in log.events.items()}
    accepted = [one for one, outcome in zip(batch, first, strict=True) if not isinstance(outcome, NoetlError)]

    again = log.commit(accepted)

    assert {execution_id: len(stored) for execution_id, stored in log.events.items()} == events
    for outcome in again:
        assert not isinstance(outcome, NoetlError)
        assert all(one.duplicate for one in outcome)


def test_a_refused_request_leaves_no_trace_for_those_behind_it() -> None:
    log = started_log(1, 2)
    spanning = AppendRequest(
        tenant_id="acme",
        organization_id="ops",
        streams=(
            StreamAppend(execution_id=1, drafts=(note("a"),)),
            StreamAppend(execution_id=2, drafts=(note("b"),), expected_stream_version=9),
        ),
    )

    refused, accepted = log.commit([spanning, request(1, note("a", meta={"other": True}))])

    assert isinstance(refused, VersionConflict)
    assert not isinstance(accepted, NoetlError)
    assert accepted[0].event.stream_version == 2


def test_hints_follow_only_requests_that_added_something() -> None:
    log = started_log(1)
    hint = Hint(subject="noetl.work.a.b", body=b"", execution_id=1)
    view = LogView(now=NOON, heads=dict(log.heads), keys=dict(log.keys))

    numbered = number(
        [
            log.prepared(request(1, note("start"), hints=(hint,))),
            log.prepared(request(1, note("start", meta={"x": 1}), hints=(hint,))),
            log.prepared(request(1, note("new"), hints=(hint,))),
        ],
        view,
    )

    assert numbered.hints == (hint,)


def test_a_fence_is_checked_only_where_something_would_be_written() -> None:
    log = started_log(1)
    shard = shard_of(1, 4)
    log.epochs[("planner", shard)] = 7

    old = Fence(role="planner", shard=shard, epoch=6)
    refused, repeated, current = log.commit(
        [
            request(1, note("a"), fence=old),
            request(1, note("start"), fence=old),
            request(1, note("b"), fence=Fence(role="planner", shard=shard, epoch=7)),
        ]
    )

    assert isinstance(refused, Fenced)
    assert not isinstance(repeated, NoetlError)
    assert repeated[0].duplicate
    assert not isinstance(current, NoetlError)


def test_whoever_asks_and_whoever_writes_must_both_hold_their_leases() -> None:
    log = started_log(1)
    shard = shard_of(1, 4)
    log.epochs |= {("planner", shard): 7, ("reaper", 3): 2}  # a shard of reapers is none of executions

    outcomes = log.commit(
        [
            request(
                1,
                note(f"{writer}/{asker}"),
                fence=Fence(role="planner", shard=shard, epoch=writer),
                asked_by=Fence(role="reaper", shard=3, epoch=asker),
            )
            for writer in (6, 7)
            for asker in (1, 2)
        ]
    )

    roles = [one.facts["role"] if isinstance(one, Fenced) else "" for one in outcomes]
    assert roles == ["planner", "planner", "reaper", ""]


@pytest.mark.parametrize(
    ("append", "error"),
    [
        (request(9, note("a")), NotFound),
        (request(1, note("a"), tenant="rival"), NotFound),
        (request(1, note("other"), start=StreamStart()), AlreadyExists),
        (request(1, note("start"), tenant="rival", start=StreamStart()), AlreadyExists),
        (request(1, note("start", meta={"x": 1})), KeyTaken),
        (request(1, note("a"), expected_stream_version=0), VersionConflict),
        (
            request(1, note("a", aggregate_type="command", aggregate_id="c", expected_aggregate_version=1)),
            VersionConflict,
        ),
    ],
)
def test_each_guard_has_its_own_refusal(append: AppendRequest, error: type[NoetlError]) -> None:
    (outcome,) = started_log(1).commit([append])

    assert type(outcome) is error


def test_after_the_end_only_the_allowed_may_follow() -> None:
    log = started_log(1)
    ended, late, other_end, retired = log.commit(
        [
            request(1, Draft(event_type="playbook.completed", idempotency_key=END_KEY)),
            request(1, note("late")),
            request(1, Draft(event_type="execution.cancelled", idempotency_key=END_KEY)),
            request(1, Draft(event_type="execution.retired", idempotency_key="r")),
        ]
    )

    assert not isinstance(ended, NoetlError)
    assert isinstance(late, AlreadyTerminal)
    assert isinstance(other_end, AlreadyTerminal)
    assert not isinstance(retired, NoetlError)


def test_time_never_goes_back_within_a_stream() -> None:
    log = started_log(1)
    log.now -= timedelta(hours=1)

    (outcome,) = log.commit([request(1, note("a"))])

    assert not isinstance(outcome, NoetlError)
    assert outcome[0].event.ingest_time == log.events[1][0].ingest_time
