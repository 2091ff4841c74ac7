"""An event as a message of the bus: its bytes are the payload, what depends on its place is in headers."""

from collections.abc import Mapping
from functools import lru_cache

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.timestamps import format_time, parse_time

from noetl_contracts.subjects import (
    AGGREGATE_VERSION,
    CHECKSUM,
    INGEST_TIME,
    LOG_BRANCH,
    PREV_CHECKSUM,
    STREAM_VERSION,
    TRACEPARENT,
)

_time_text = lru_cache(maxsize=256)(format_time)
"""Events of one append share their time."""


def event_headers(stored: StoredEvent, trace: str) -> dict[str, str]:
    """The headers of a message; its id is added when it is sent."""
    headers = {
        STREAM_VERSION: str(stored.stream_version),
        AGGREGATE_VERSION: str(stored.aggregate_version),
        INGEST_TIME: _time_text(stored.ingest_time),
        PREV_CHECKSUM: stored.prev_checksum,
        CHECKSUM: stored.checksum,
    }
    if trace:
        headers[TRACEPARENT] = trace
    return headers


def is_of_another_log(headers: Mapping[str, str], log_branch: str) -> bool:
    """Whether a message tells of a log that is no longer written, such as the future that a restored backup lost.

    What is not marked, or cannot be compared yet, is taken as one's own.
    """
    marked = headers.get(LOG_BRANCH, "")
    return bool(marked and log_branch) and marked != log_branch


def stored_event(body: bytes, headers: Mapping[str, str]) -> StoredEvent:
    """The event that a message carries; whether its chain holds is for `verify_link` to say."""
    try:
        return StoredEvent(
            body=body,
            stream_version=int(headers[STREAM_VERSION]),
            aggregate_version=int(headers[AGGREGATE_VERSION]),
            ingest_time=parse_time(headers[INGEST_TIME]),
            prev_checksum=headers[PREV_CHECKSUM],
            checksum=headers[CHECKSUM],
        )
    except KeyError as exc:
        raise Corrupt(f"a message of an event lacks the header {exc.args[0]!r}") from exc
    except (ValueError, InvalidInput) as exc:
        raise Corrupt(f"a message of an event has a header that cannot be read: {exc}") from exc
