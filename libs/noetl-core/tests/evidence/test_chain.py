"""A history that somebody touched is told from one that nobody did, and the event is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonValue, decode, encode
from noetl_core.envelope import StoredEvent, chain_checksum
from noetl_core.evidence.chain import ChainCheck, Head, check_chain
from noetl_testkit.histories import EXECUTION, History, histories, two_steps

STORED = two_steps(History()).stored


@settings(max_examples=100, deadline=None)
@given(histories())
def test_nothing_is_wrong_with_what_the_log_wrote(history: History) -> None:
    head = Head(version=len(history.stored), checksum=history.stored[-1].checksum)

    assert check_chain(EXECUTION, history.stored, head=head) == []


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(STORED) - 1), st.data())
def test_one_changed_byte_names_its_event(place: int, data: st.DataObject) -> None:
    body = bytearray(STORED[place].body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    changed = [*STORED]
    changed[place] = STORED[place]._replace(body=bytes(body))

    findings = check_chain(EXECUTION, changed)

    assert [(one.code, one.stream_version) for one in findings] == [("event.changed", place + 1)]


@pytest.mark.parametrize("place", range(len(STORED)))
def test_a_removed_event_is_missed_by_its_version(place: int) -> None:
    findings = check_chain(EXECUTION, STORED[:place] + STORED[place + 1 :], head=Head(version=len(STORED)))

    assert [(one.code, one.stream_version) for one in findings] == [("event.missing", place + 1)]


@pytest.mark.parametrize("place", range(1, len(STORED) - 1))
def test_an_event_removed_with_those_after_it_renumbered_is_noticed_where_it_stood(place: int) -> None:
    renumbered = [event._replace(stream_version=event.stream_version - 1) for event in STORED[place + 1 :]]

    findings = check_chain(EXECUTION, STORED[:place] + renumbered)

    assert findings[0].stream_version == place + 1


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, len(STORED) - 1), min_size=2, max_size=2))
def test_two_events_that_changed_places_are_both_named(places: set[int]) -> None:
    first, second = sorted(places)
    order = [*STORED]
    order[first], order[second] = order[second], order[first]
    contents = [*STORED]
    contents[first] = STORED[first]._replace(body=STORED[second].body)
    contents[second] = STORED[second]._replace(body=STORED[first].body)

    assert {first + 1} <= {one.stream_version for one in check_chain(EXECUTION, order)}
    assert {one.stream_version for one in check_chain(EXECUTION, contents)} == {first + 1, second + 1}


def test_an_event_that_was_sealed_anew_is_not_linked_to_the_next_one() -> None:
    forged = _sealed(STORED[4]._replace(body=STORED[4].body.replace(b"first", b"other")))

    findings = check_chain(EXECUTION, [*STORED[:4], forged, *STORED[5:]])

    assert ("event.content_differs", 5) in {(one.code, one.stream_version) for one in findings}
    assert ("event.not_linked", 6) in {(one.code, one.stream_version) for one in findings}


def test_a_history_that_was_sealed_anew_to_its_end_differs_from_its_head() -> None:
    last = _sealed(STORED[-1]._replace(aggregate_version=99))
    head = Head(version=len(STORED), checksum=STORED[-1].checksum)

    findings = check_chain(EXECUTION, [*STORED[:-1], last], head=head)

    assert [one.code for one in findings] == ["event.other_than_head"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema_version", "one"),
        ("schema_version", [1]),
        ("schema_version", None),
        ("meta", 7),
        ("meta", "text"),
        ("meta", [["a", 1]]),
        ("result", 7),
        ("result", [["status", "ok"]]),
    ],
)
def test_an_event_in_which_something_else_stands_is_named_and_the_others_are_checked(
    name: str, value: JsonValue
) -> None:
    body = decode(STORED[4].body)
    assert isinstance(body, dict)
    forged = _sealed(STORED[4]._replace(body=encode({**body, name: value})))

    findings = check_chain(EXECUTION, [*STORED[:4], forged, *STORED[5:]])

    assert ("event.unreadable", 5, body["event_type"]) in {
        (one.code, one.stream_version, one.event_type) for one in findings
    }
    assert [one.stream_version for one in findings] == [5, 6]


def test_an_event_of_another_execution_is_named() -> None:
    findings = check_chain(EXECUTION + 1, STORED[:1])

    assert [one.code for one in findings] == ["event.of_another_stream"]


def test_pages_are_checked_as_the_whole_is() -> None:
    check = ChainCheck(EXECUTION, deep=False)

    assert check.take(STORED[:7]) == []
    assert [one.code for one in check.take(STORED[8:])] == ["event.missing"]
    assert [one.code for one in check.end(Head(version=len(STORED) + 2))] == ["event.missing"]


def test_a_head_without_a_checksum_is_another_one_than_that_of_the_last_event() -> None:
    emptied, unknown = Head(version=len(STORED), checksum=""), Head(version=len(STORED))

    assert [one.code for one in check_chain(EXECUTION, STORED, head=emptied)] == ["event.other_than_head"]
    assert check_chain(EXECUTION, STORED, head=unknown) == []


def _sealed(event: StoredEvent) -> StoredEvent:
    checksum = chain_checksum(
        prev_checksum=event.prev_checksum,
        stream_version=event.stream_version,
        aggregate_version=event.aggregate_version,
        ingest_time=event.ingest_time,
        body=event.body,
    )
    return event._replace(checksum=checksum)
