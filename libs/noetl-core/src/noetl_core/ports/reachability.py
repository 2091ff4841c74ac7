"""Everything that may refer to payloads, as a collector reads it: the whole log, and the playbooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from noetl_core.ports.event_log import Scope


class ScannedEvent(NamedTuple):
    """An event on its way past the collector."""

    tenant_id: str
    organization_id: str
    execution_id: int
    event_type: str
    ingest_time: datetime
    body: bytes


class ScannedText(NamedTuple):
    """The text of a playbook."""

    tenant_id: str
    organization_id: str
    content: str


class LogScan(Protocol):
    """Reads all of it, page by page; for collectors, which are in no hurry."""

    async def now(self) -> datetime:
        """The log's clock. Every event that was committed before this is answered is part of a scan that follows."""
        ...

    def events(self, scope: Scope | None) -> AsyncIterator[Sequence[ScannedEvent]]:
        """All events of an organization, or of all of them, each stream in its order."""
        ...

    def playbooks(self, scope: Scope | None) -> AsyncIterator[Sequence[ScannedText]]:
        """All versions of all playbooks."""
        ...
