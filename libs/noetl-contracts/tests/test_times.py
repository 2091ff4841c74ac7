"""Points in time in messages."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from noetl_contracts.mapping.times import moment, timestamp
from noetl_core.errors import InvalidInput


@pytest.mark.parametrize(
    "beyond", [Timestamp(seconds=253402300800), Timestamp(seconds=-62135596801), Timestamp(nanos=-5)]
)
def test_a_message_that_names_no_point_in_time_is_refused_as_wrong(beyond: Timestamp) -> None:
    with pytest.raises(InvalidInput):
        moment(beyond)


def test_the_last_second_goes_over_the_wire_and_back() -> None:
    last = Timestamp(seconds=253402300799, nanos=999_999_000)

    assert timestamp(moment(last)) == last
