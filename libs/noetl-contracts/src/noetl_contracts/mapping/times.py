"""Points in time and durations as protobuf carries them, to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from noetl_core.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(moment: datetime) -> Timestamp:
    """A point in time; integer arithmetic, because floats lose microseconds."""
    since = moment - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1000)


def optional_timestamp(moment: datetime | None) -> Timestamp | None:
    """A point in time, if there is one."""
    return None if moment is None else timestamp(moment)


def moment(value: Timestamp) -> datetime:
    """The point in time that a message names; raises `InvalidInput` if there is no such time."""
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as exc:
        raise InvalidInput(f"{value.seconds} seconds and {value.nanos} nanoseconds are no point in time") from exc
