from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_contracts.messages import (
    MAX_SHARED_BYTES,
    count_events,
    event_headers,
    is_of_another_log,
    message_runs,
    pack_events,
    stored_event,
    unpack_events,
)
from noetl_contracts.subjects import CHECKSUM, EVENTS, INGEST_TIME, LOG_BRANCH, STREAM_VERSION, TRACEPARENT
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENT = StoredEvent(
    body=b'{"event_id":"7"}',
    stream_version=3,
    aggregate_version=2,
    ingest_time=datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
    prev_checksum="ab" * 32,
    checksum="cd" * 32,
)


@given(
    body=st.binary(),
    version=st.integers(min_value=1, max_value=2**63 - 1),
    ingest_time=st.datetimes(timezones=st.just(UTC)),
)
def test_an_event_comes_out_of_its_message_as_it_went_in(body: bytes, version: int, ingest_time: datetime) -> None:
    event = EVENT._replace(body=body, stream_version=version, ingest_time=ingest_time)

    assert stored_event(event.body, event_headers(event, TRACE)) == event


def test_the_first_event_of_a_chain_has_no_checksum_before_it() -> None:
    first = EVENT._replace(stream_version=1, prev_checksum="")

    assert stored_event(first.body, event_headers(first, "")) == first


def test_the_trace_travels_only_if_there_is_one() -> None:
    assert event_headers(EVENT, TRACE)[TRACEPARENT] == TRACE
    assert TRACEPARENT not in event_headers(EVENT, "")


def test_a_message_that_lacks_a_header_is_corrupt_and_says_which() -> None:
    headers = event_headers(EVENT, TRACE)
    del headers[CHECKSUM]

    with pytest.raises(Corrupt, match="Noetl-Checksum"):
        stored_event(EVENT.body, headers)


@pytest.mark.parametrize(
    ("name", "text"), [(STREAM_VERSION, "three"), (INGEST_TIME, "yesterday"), (INGEST_TIME, "2026-03-01")]
)
def test_a_header_that_cannot_be_read_makes_the_message_corrupt(name: str, text: str) -> None:
    with pytest.raises(Corrupt, match="cannot be read"):
        stored_event(EVENT.body, {**event_headers(EVENT, TRACE), name: text})


@pytest.mark.parametrize(
    ("marked", "log_branch", "foreign"),
    [("log.1", "log.2", True), ("log.1", "log.1", False), ("", "log.1", False), ("log.1", "", False)],
)
def test_only_what_is_marked_with_another_log_is_of_another(marked: str, log_branch: str, foreign: bool) -> None:
    headers = {LOG_BRANCH: marked} if marked else {}

    assert is_of_another_log(headers, log_branch) is foreign


@given(bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=5), first=st.integers(min_value=1, max_value=2**62))
def test_neighbouring_events_come_out_of_their_message_as_they_went_in(bodies: list[bytes], first: int) -> None:
    events = [
        EVENT._replace(body=body, stream_version=version, prev_checksum="" if version == 1 else "ab" * 32)
        for version, body in enumerate(bodies, start=first)
    ]

    body, headers = pack_events(events, TRACE)

    assert unpack_events(body, headers) == events
    assert count_events(headers) == len(events)
    assert headers[STREAM_VERSION] == str(events[-1].stream_version)
    assert headers[TRACEPARENT] == TRACE


def test_one_event_alone_has_the_message_that_it_always_had() -> None:
    assert pack_events([EVENT], TRACE) == (EVENT.body, event_headers(EVENT, TRACE))


def test_events_share_messages_up_to_a_size_and_a_large_one_has_its_own() -> None:
    half = EVENT._replace(body=b"h" * (MAX_SHARED_BYTES // 2))
    large = EVENT._replace(body=b"l" * (2 * MAX_SHARED_BYTES))

    assert list(message_runs([half, half, half, large, half])) == [[half, half], [half], [large], [half]]
    assert list(message_runs([])) == []


@pytest.mark.parametrize("count", ["1", "3", "two"])
def test_a_message_that_does_not_have_as_many_events_as_it_says_is_corrupt(count: str) -> None:
    body, headers = pack_events([EVENT, EVENT], TRACE)

    with pytest.raises(Corrupt, match="or not all of the last one"):
        unpack_events(body, {**headers, EVENTS: count})


@given(place=st.integers(min_value=1, max_value=200))
def test_a_message_of_several_events_that_was_cut_off_is_corrupt(place: int) -> None:
    body, headers = pack_events([EVENT, EVENT], TRACE)

    with pytest.raises(Corrupt):
        unpack_events(body[: len(body) - place], headers)


@pytest.mark.parametrize("length", ["-40", "+1", "x", "", "99999999999"])
def test_a_length_that_is_none_makes_a_message_of_several_events_corrupt(length: str) -> None:
    body, headers = pack_events([EVENT, EVENT], TRACE)
    _, rest = body.split(b" ", 1)

    with pytest.raises(Corrupt):
        unpack_events(length.encode() + b" " + rest, headers)
