"""Points of a history: its head, a version, an event, or a time by the log's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from noetl_core.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """At most one of the three; none is the head."""

    event_id: int = 0
    stream_version: int = 0
    time: datetime | None = None

    def __post_init__(self) -> None:
        if sum((self.event_id != 0, self.stream_version != 0, self.time is not None)) > 1:
            raise InvalidInput("a point is an event, a position or a time, not several of them")
        if self.stream_version < 0:
            raise InvalidInput("positions count from 1")
        if self.time is not None and self.time.tzinfo is None:
            raise InvalidInput("a point in time has a time zone")
