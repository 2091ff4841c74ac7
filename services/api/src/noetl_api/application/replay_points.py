"""Finds the version that a point of a history stands for; the log alone says."""

from __future__ import annotations

from datetime import datetime

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, InvalidInput, NotFound
from noetl_core.ports.event_finder import EVENT_NOT_FOUND, EventFinder
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.replay.points import Point
from noetl_core.timestamps import format_time


class ReplayPoints:
    """Versions are the order of a history; events and times are ways to name one."""

    def __init__(self, log: EventLog, finder: EventFinder) -> None:
        self._log = log
        self._finder = finder

    async def version(self, scope: Scope | None, execution_id: int, point: Point) -> tuple[int, int]:
        """The version, and that of the head; raises `NotFound` and `InvalidInput` for points that there are not."""
        first = await self._log.read(scope, execution_id, from_version=1, limit=1)
        if not first.events:
            raise NotFound("execution", execution_id, code="execution.not_found")
        head = first.head_version
        if point.event_id:
            return await self._of_event(scope, execution_id, point.event_id), head
        if point.time is not None:
            if point.time < first.events[0].ingest_time:
                began = format_time(first.events[0].ingest_time)
                raise InvalidInput(f"execution {execution_id} was not there yet: it began at {began}")
            return await self._at_time(scope, execution_id, point.time, head), head
        if point.stream_version > head:
            raise InvalidInput(f"execution {execution_id} has no position {point.stream_version} yet, but {head}")
        return point.stream_version or head, head

    async def _of_event(self, scope: Scope | None, execution_id: int, event_id: int) -> int:
        event = await self._finder.find(scope, event_id)
        if event.envelope().execution_id != execution_id:
            raise NotFound("event", event_id, code=EVENT_NOT_FOUND)
        return event.stream_version

    async def _at_time(self, scope: Scope | None, execution_id: int, time: datetime, head: int) -> int:
        """Ingest times never step back within a stream, so halving finds the last one."""
        known, beyond = 1, head + 1
        while beyond - known > 1:
            middle = (known + beyond) // 2
            if (await self._event(scope, execution_id, middle)).ingest_time <= time:
                known = middle
            else:
                beyond = middle
        return known

    async def _event(self, scope: Scope | None, execution_id: int, version: int) -> StoredEvent:
        page = await self._log.read(scope, execution_id, from_version=version, to_version=version, limit=1)
        if not page.events:
            raise Corrupt(f"execution {execution_id} has no event at version {version}")
        return page.events[0]
