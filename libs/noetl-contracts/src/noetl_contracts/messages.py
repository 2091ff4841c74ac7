"""Events as messages of the bus.

Of one event its bytes are the payload, and what depends on its place is in headers. Neighbouring events of a stream,
as one append makes them, share a message: a line with length and place before the bytes of each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.timestamps import format_time, parse_time
from noetl_core.values import new_tuple

from noetl_contracts.subjects import (
    AGGREGATE_VERSION,
    CHECKSUM,
    EVENTS,
    INGEST_TIME,
    LOG_BRANCH,
    PREV_CHECKSUM,
    STREAM_VERSION,
    TRACEPARENT,
)

_time_text = lru_cache(maxsize=256)(format_time)
_time = lru_cache(maxsize=256)(parse_time)
"""Events of one append share their time."""

MAX_SHARED_BYTES: Final = 128 * 1024
"""Of events that share a message; one that is larger has a message to itself."""


def message_runs(events: Iterable[StoredEvent]) -> Iterator[list[StoredEvent]]:
    """Neighbouring events as they share messages; the same events are divided the same way each time."""
    run: list[StoredEvent] = []
    size = 0
    for event in events:
        if run and size + len(event.body) > MAX_SHARED_BYTES:
            yield run
            run, size = [], 0
        run.append(event)
        size += len(event.body)
    if run:
        yield run


def pack_events(events: Sequence[StoredEvent], trace: str) -> tuple[bytes, dict[str, str]]:
    """Payload and headers of a message that carries these, at least one, in their order."""
    last = events[-1]
    if len(events) == 1:
        return last.body, event_headers(last, trace)
    headers = {STREAM_VERSION: str(last.stream_version), EVENTS: str(len(events))}
    if trace:
        headers[TRACEPARENT] = trace
    return b"".join([part for event in events for part in (_place(event), event.body)]), headers


def count_events(headers: Mapping[str, str]) -> int:
    """How many events a message carries by its own account."""
    text = headers.get(EVENTS, "1")
    return int(text) if text.isdecimal() else 1


def unpack_events(body: bytes, headers: Mapping[str, str]) -> list[StoredEvent]:
    """The events that a message carries, in their order; whether their chain holds is for `verify_link` to say."""
    if EVENTS not in headers:
        return [stored_event(body, headers)]
    events, at = [], 0
    try:
        while at < len(body):
            begins = body.index(b"\n", at) + 1
            length, version, aggregate, time, previous, checksum = body[at : begins - 1].decode().split(" ")
            at = begins + int(length) if length.isdecimal() else len(body) + 1
            place = (body[begins:at], int(version), int(aggregate), _time(time), previous, checksum)
            events.append(new_tuple(StoredEvent, place))
    except (ValueError, InvalidInput) as exc:
        raise Corrupt(f"a message of several events cannot be read: {exc}") from exc
    if at != len(body) or str(len(events)) != headers[EVENTS]:
        raise Corrupt(f"a message of {headers[EVENTS]} events has {len(events)}, or not all of the last one")
    return events


def _place(event: StoredEvent) -> bytes:
    return (
        f"{len(event.body)} {event.stream_version} {event.aggregate_version} {_time_text(event.ingest_time)}"
        f" {event.prev_checksum} {event.checksum}\n"
    ).encode()


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
