"""What a replica remembers of streams, and the clock that it goes by meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from noetl_adapters.postgres.remembered_streams import RememberedStreams, ServerClock
from noetl_core.append import AppendRequest, Fence, LogView, PreparedRequest, StreamAppend, StreamStart, prepare
from noetl_core.envelope import Draft
from noetl_core.numbering import number

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ID = 7


def appending(
    *keys: str, start: StreamStart | None = None, fence: Fence | None = None, execution_id: int = ID
) -> PreparedRequest:
    drafts = tuple(Draft(event_type="note.taken", idempotency_key=key) for key in keys)
    request = AppendRequest(
        tenant_id="t",
        organization_id="o",
        streams=(StreamAppend(execution_id=execution_id, drafts=drafts, start=start),),
        fence=fence,
    )
    return prepare(request, next_event_id=lambda: 1, now=NOON, shard_count=8)


def commit(remembered: RememberedStreams, request: PreparedRequest, view: LogView | None = None) -> None:
    view = view or remembered.view([request], NOON)
    assert view is not None
    remembered.learn(view, number([request], view))


def started() -> RememberedStreams:
    remembered = RememberedStreams()
    commit(remembered, appending("start", start=StreamStart()))
    return remembered


def test_a_stream_is_known_from_its_start_on() -> None:
    remembered = started()

    commit(remembered, appending("a", "b"))

    view = remembered.view([appending("c")], NOON)
    assert view is not None
    assert view.heads[ID].version == 3


def test_what_memory_cannot_judge_is_left_to_a_look() -> None:
    remembered = started()

    assert remembered.view([appending("start")], NOON) is None, "a key that is known"
    assert remembered.view([appending("a", fence=Fence(role="planner", shard=1, epoch=2))], NOON) is None
    assert remembered.view([appending("a")], None) is None, "nobody knows what time it is"
    assert RememberedStreams().view([appending("a")], NOON) is None


def test_a_start_key_is_looked_for_only_if_it_was_used_here() -> None:
    remembered = RememberedStreams(most=2)
    once = appending("x", start=StreamStart(start_key="once"))
    commit(remembered, once)

    assert remembered.view([once], NOON) is None
    assert remembered.view([appending("x", start=StreamStart(start_key="another"))], NOON) is not None

    for execution_id, key in ((8, "second"), (9, "third")):
        commit(remembered, appending("x", start=StreamStart(start_key=key), execution_id=execution_id))
    assert remembered.view([once], NOON) is not None, "an index knows what is forgotten here"


def test_a_stream_that_was_written_by_another_way_is_forgotten() -> None:
    remembered = started()
    elsewhere = RememberedStreams()
    commit(elsewhere, appending("start", start=StreamStart()))
    commit(elsewhere, appending("theirs"))
    ahead = elsewhere.view([appending("ours")], NOON)

    commit(remembered, appending("ours"), ahead)

    assert remembered.view([appending("more")], NOON) is None


def long(execution_id: int, events: int) -> PreparedRequest:
    return appending(*(f"{n:040}" for n in range(events)), start=StreamStart(), execution_id=execution_id)


def is_known(remembered: RememberedStreams, execution_id: int) -> bool:
    return remembered.view([appending("a", execution_id=execution_id)], NOON) is not None


def test_long_streams_are_remembered_and_the_longest_unmoved_are_forgotten_first() -> None:
    remembered = RememberedStreams(most_bytes=230_000)
    for execution_id in (1, 2, 3):
        commit(remembered, long(execution_id, 400))

    assert [is_known(remembered, execution_id) for execution_id in (1, 2, 3)] == [False, True, True]
    view = remembered.view([appending("a", execution_id=3)], NOON)
    assert view is not None
    assert view.heads[3].version == 400


def test_one_that_becomes_too_long_goes_and_all_others_stay() -> None:
    remembered = RememberedStreams(most_bytes=400_000)
    for execution_id in range(1, 5):
        commit(remembered, long(execution_id, 100))
    commit(remembered, long(ID, 900))
    assert is_known(remembered, ID)

    commit(remembered, appending(*(f"more{n:040}" for n in range(200))))

    assert not is_known(remembered, ID)
    assert all(is_known(remembered, execution_id) for execution_id in range(1, 5))


def test_what_is_forgotten_makes_room() -> None:
    remembered = RememberedStreams(most_bytes=230_000)
    for execution_id in range(1, 20):
        commit(remembered, long(execution_id, 400))
        view = remembered.view([appending("a", execution_id=execution_id)], NOON)
        assert view is not None
        remembered.forget(view)

    for execution_id in (1, 2):
        commit(remembered, long(execution_id, 400))
    assert is_known(remembered, 1)


def test_only_what_was_found_to_have_moved_is_forgotten() -> None:
    remembered = RememberedStreams()
    fence = Fence(role="planner", shard=1, epoch=2)
    for execution_id in (1, 2):
        commit(remembered, long(execution_id, 3))
    seen = remembered.view([appending("a", execution_id=1), appending("a", execution_id=2)], NOON)
    assert seen is not None
    seen = replace(seen, epochs={(fence.role, fence.shard): fence.epoch})
    remembered.learn(seen, number([], seen))
    found = replace(seen, heads={1: seen.heads[1], 2: replace(seen.heads[2], version=9)})

    remembered.forget(seen, found)
    assert [is_known(remembered, execution_id) for execution_id in (1, 2)] == [True, False]
    assert remembered.view([appending("a", fence=fence, execution_id=1)], NOON) is not None

    remembered.forget(seen, replace(found, epochs={(fence.role, fence.shard): 3}))
    assert remembered.view([appending("a", fence=fence, execution_id=1)], NOON) is None
    assert is_known(remembered, 1)


def test_too_many_streams_and_one_that_is_too_long_are_not_kept() -> None:
    for small in (RememberedStreams(most=0), RememberedStreams(most_bytes=500)):
        commit(small, long(ID, 4))
        assert not is_known(small, ID)


def test_a_view_has_the_aggregates_that_are_asked_for_and_no_others() -> None:
    remembered = started()
    notes = tuple(
        Draft(event_type="note.taken", idempotency_key=f"k{n}", aggregate_type="command", aggregate_id=f"c{n % 3}")
        for n in range(6)
    )
    stream = StreamAppend(execution_id=ID, drafts=notes)
    request = AppendRequest(tenant_id="t", organization_id="o", streams=(stream,))
    commit(remembered, prepare(request, next_event_id=lambda: 1, now=NOON, shard_count=8))
    again = replace(notes[1], idempotency_key="again")

    next_one = replace(request, streams=(replace(stream, drafts=(again,)),))
    view = remembered.view([prepare(next_one, next_event_id=lambda: 2, now=NOON, shard_count=8)], NOON)

    assert view is not None
    assert view.aggregate_versions == {(ID, "c1"): 2}


def test_the_clock_is_never_behind_and_stops_being_trusted() -> None:
    time = 10.0
    clock = ServerClock(monotonic=lambda: time)
    assert clock.now() is None

    time = 10.25
    clock.hear(NOON, asked_at=10.0)
    assert clock.now() is None, "that took too long to mean anything"
    time = 10.5
    clock.hear(NOON, asked_at=10.46875)

    time = 11.5
    assert clock.now() == NOON + timedelta(seconds=1.03125)
    time = 16.0
    assert clock.now() is None
