"""What was said about the log of one execution: events in any order, how far it goes, and whether that is proven."""

from __future__ import annotations

from typing import Final

from noetl_core.envelope import StoredEvent

MAX_EVENTS: Final = 2_000


class Heard:
    """Keeps what came early until it is its turn; what nobody has told is read from the log."""

    def __init__(self) -> None:
        self.wanted_version = 0
        """How far the log is said to go."""
        self.is_hearsay = False
        """Whether all that is known was told ahead of its commit, which may still come to nothing."""
        self._published_version = 0
        """What came by the bus, or was seen as a head, is in the log, whatever was said about it before."""
        self._events: dict[int, StoredEvent] = {}

    def publish(self, version: int) -> None:
        """The log goes as far as this, for sure."""
        self._published_version = max(self._published_version, version)

    def begin_with_hearsay(self) -> None:
        """The first that is heard was told ahead of its commit, unless the log was seen already."""
        if not self._published_version:
            self.is_hearsay = True

    def want(self, version: int) -> None:
        """The log is said to go as far as this."""
        self.wanted_version = max(self.wanted_version, version)

    def keep(self, event: StoredEvent) -> None:
        """An event for later; what does not fit is read from the log."""
        self.want(event.stream_version)
        if len(self._events) < MAX_EVENTS:
            self._events[event.stream_version] = event

    def pop(self, version: int) -> StoredEvent | None:
        """The event that is next, if it was told."""
        return self._events.pop(version, None)

    def drop_until(self, known_version: int) -> None:
        """Events that came again, or too late, are known."""
        self._events = {version: event for version, event in self._events.items() if version > known_version}

    def read_until(self, known_version: int) -> None:
        """The log was read to its head: whoever said that it goes further was wrong, or will say so again.

        What was told while it was being read is later than that head, and nobody tells it twice.
        """
        following = known_version + 1
        self.wanted_version = min(self.wanted_version, following if following in self._events else known_version)
        self.is_hearsay = False

    def forget(self) -> None:
        """The log knows nothing of what was told; what it is known to have is wanted as before."""
        self._events.clear()
        self.wanted_version = self._published_version
        self.is_hearsay = False
