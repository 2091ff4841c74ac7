"""The newest events of executions that this replica moves, for whoever is nearly up to date or follows from a start."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.ports.event_log import EventPage, Scope

MOST_STREAMS: Final = 200
MOST_BYTES: Final = 64 * 1024
"""Of one stream: whoever is that far behind reads the log."""


class _Recent:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.events: list[StoredEvent] = []
        self.bytes = 0
        self.ended = False

    @property
    def head(self) -> int:
        return self.events[-1].stream_version

    def add(self, events: Sequence[StoredEvent]) -> None:
        self.events += events
        self.bytes += sum(len(event.body) for event in events)
        if self.bytes > MOST_BYTES:
            self._shorten()

    def _shorten(self) -> None:
        """To half of what it may have, so that this is not done with every commit."""
        oldest = 0
        while oldest < len(self.events) - 1 and self.bytes > MOST_BYTES // 2:
            self.bytes -= len(self.events[oldest].body)
            oldest += 1
        del self.events[:oldest]


class RecentStreams:
    """Of each stream that it has, all events from some version on to the last that is known to be committed.

    It may be behind what another replica has committed a moment ago, as a read may be that began a moment earlier;
    whoever follows hears of that.
    """

    def __init__(self, *, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._streams: OrderedDict[int, _Recent] = OrderedDict()

    def __contains__(self, execution_id: int) -> bool:
        return execution_id in self._streams

    def add(self, scope: Scope, execution_id: int, events: Sequence[StoredEvent], *, ended: bool) -> None:
        """What was committed here."""
        recent = self._streams.get(execution_id)
        if recent is None or recent.head + 1 != events[0].stream_version:
            recent = self._streams[execution_id] = _Recent(scope)
        recent.add(events)
        recent.ended = recent.ended or ended
        self._streams.move_to_end(execution_id)
        if len(self._streams) > self._most:
            self._streams.popitem(last=False)

    def heard(self, execution_id: int, version: int) -> None:
        """Somebody has moved the stream to a version: what is here may not be all."""
        recent = self._streams.get(execution_id)
        if recent is not None and version > recent.head:
            del self._streams[execution_id]

    def forget(self, execution_ids: Collection[int] | None = None) -> None:
        """News may have been missed, of these executions or of any."""
        if execution_ids is None:
            self._streams.clear()
        else:
            for execution_id in execution_ids:
                self._streams.pop(execution_id, None)

    def page(self, scope: Scope | None, execution_id: int, from_version: int) -> EventPage | None:
        """As the log would tell it; None where it has to be asked, also whether the caller may see it."""
        recent = self._streams.get(execution_id)
        if recent is None or (scope is not None and scope != recent.scope):
            return None
        place = from_version - recent.events[0].stream_version
        if place < 0:
            return None
        return EventPage(events=tuple(recent.events[place:]), head_version=recent.head, terminal=recent.ended)
