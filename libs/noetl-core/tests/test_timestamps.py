"""Times as they are written and read: always UTC, and a time that UTC cannot express is refused like any other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from noetl_core.errors import InvalidInput
from noetl_core.timestamps import format_time, parse_time, to_utc

BEYOND = ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+05:00"]


@pytest.mark.parametrize("text", BEYOND)
def test_a_time_that_utc_cannot_express_is_refused(text: str) -> None:
    moment = datetime.fromisoformat(text)

    for refused in (lambda: parse_time(text), lambda: to_utc(moment), lambda: format_time(moment)):
        with pytest.raises(InvalidInput, match="UTC cannot express"):
            refused()


def test_a_time_without_a_zone_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInput, match="as_of_time has no time zone"):
        to_utc(datetime(2026, 1, 1), what="as_of_time")


def test_the_first_and_the_last_times_are_read_and_written() -> None:
    for text in ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"):
        assert format_time(parse_time(text)) == text
    noon = datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert to_utc(noon) == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert to_utc(noon).tzinfo is UTC
