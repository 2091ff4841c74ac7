from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_contracts.messages import event_headers, is_of_another_log, stored_event
from noetl_contracts.subjects import CHECKSUM, INGEST_TIME, LOG_BRANCH, STREAM_VERSION, TRACEPARENT
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
