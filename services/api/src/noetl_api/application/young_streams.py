"""The first events of executions that have just begun here, for whoever follows them from their start."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.ports.event_log import EventPage, Scope

MOST_STREAMS: Final = 200
MOST_BYTES: Final = 64 * 1024
"""Of one stream: whoever is that far behind reads the log."""


class _Young:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.events: list[StoredEvent] = []
        self.bytes = 0
        self.ended = False


class YoungStreams:
    """Whole from the first event on to the last that is known to be committed, or not there.

    It may be behind what another replica has committed a moment ago, as a read may be that began a moment earlier;
    whoever follows hears of that.
    """

    def __init__(self, *, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._streams: OrderedDict[int, _Young] = OrderedDict()

    def __contains__(self, execution_id: int) -> bool:
        return execution_id in self._streams

    def add(self, scope: Scope, execution_id: int, events: Sequence[StoredEvent], *, ended: bool) -> None:
        """What was committed here."""
        if events[0].stream_version == 1:
            self._streams[execution_id] = _Young(scope)
            if len(self._streams) > self._most:
                self._streams.popitem(last=False)
        young = self._streams.get(execution_id)
        if young is None:
            return
        young.bytes += sum(len(event.body) for event in events)
        if len(young.events) + 1 != events[0].stream_version or young.bytes > MOST_BYTES:
            del self._streams[execution_id]
            return
        young.events += events
        young.ended = young.ended or ended

    def heard(self, execution_id: int, version: int) -> None:
        """Somebody has moved the stream to a version: what is here may not be all."""
        young = self._streams.get(execution_id)
        if young is not None and version > len(young.events):
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
        young = self._streams.get(execution_id)
        if young is None or (scope is not None and scope != young.scope):
            return None
        return EventPage(
            events=tuple(young.events[from_version - 1 :]), head_version=len(young.events), terminal=young.ended
        )
