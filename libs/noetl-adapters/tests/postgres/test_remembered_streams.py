"""What a replica remembers of streams, and the clock that it goes by meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from noetl_adapters.postgres.remembered_streams import MOST_EVENTS, RememberedStreams, ServerClock
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


def test_long_streams_and_many_are_not_kept() -> None:
    remembered = started()
    commit(remembered, appending(*(str(number) for number in range(MOST_EVENTS))))

    assert remembered.view([appending("a")], NOON) is None

    none = RememberedStreams(most=0)
    commit(none, appending("start", start=StreamStart()))
    assert none.view([appending("a")], NOON) is None


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
