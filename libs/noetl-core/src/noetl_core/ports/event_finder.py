"""One event by its identity, for those who were told nothing else about it."""

from __future__ import annotations

from typing import Protocol

from noetl_core.envelope import StoredEvent
from noetl_core.ports.event_log import Scope

EVENT_NOT_FOUND = "event.not_found"


class EventFinder(Protocol):
    """Looks an event up without its execution."""

    async def find(self, scope: Scope | None, event_id: int) -> StoredEvent:
        """The event; raises `NotFound` (event.not_found). No scope means any tenant's."""
        ...


class FrameEvents(Protocol):
    """Looks events up by the frame that they are about."""

    async def last_of_frame(self, scope: Scope | None, execution_id: int, frame_id: str) -> StoredEvent | None:
        """The last event about a frame; None if there is none. No scope means any tenant's."""
        ...
