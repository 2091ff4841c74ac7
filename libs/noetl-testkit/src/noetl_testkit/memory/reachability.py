"""The in-memory twin of the scan over the log."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

from noetl_core.ports.event_log import Scope
from noetl_core.ports.reachability import ScannedEvent, ScannedText

from noetl_testkit.memory.event_log import InMemoryEventLog


class InMemoryLogScan:
    """Port `LogScan` over the in-memory log; `texts` are the playbooks."""

    def __init__(
        self, log: InMemoryEventLog, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC), page_events: int = 50
    ) -> None:
        self.texts: list[ScannedText] = []
        self._log = log
        self._clock = clock
        self._page_events = page_events

    async def now(self) -> datetime:
        """The log's clock."""
        return self._clock()

    async def events(self, scope: Scope | None) -> AsyncIterator[Sequence[ScannedEvent]]:
        """All events, by execution and version."""
        found = [
            ScannedEvent(
                tenant_id=stream.head.tenant_id,
                organization_id=stream.head.organization_id,
                execution_id=execution_id,
                event_type=event.envelope().event_type,
                ingest_time=event.ingest_time,
                body=event.body,
            )
            for execution_id, stream in sorted(self._log.streams.items())
            for event in stream.events
            if scope in (None, Scope(tenant_id=stream.head.tenant_id, organization_id=stream.head.organization_id))
        ]
        for start in range(0, len(found), self._page_events):
            yield found[start : start + self._page_events]

    async def playbooks(self, scope: Scope | None) -> AsyncIterator[Sequence[ScannedText]]:
        """All texts."""
        yield [
            text
            for text in self.texts
            if scope in (None, Scope(tenant_id=text.tenant_id, organization_id=text.organization_id))
        ]
