"""Folds what follows a state without a gap, and stops at the first event that cannot be folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt
from noetl_core.fold import State
from noetl_core.recorded import record
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.surfaces.surface_fold import SurfaceFold, touched_objects
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass, replace

_MENTIONS_OBJECT: Final = b'"business_object"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A state with the rows that changed on the way to it, how it came about, and why it is not further."""

    surfaces: SurfaceFold
    upcasters: Upcasters = UPCASTERS
    known_version: int = 0
    """Rows had this before: up to there nothing is news, though it is folded again."""
    events: int = 0
    oldest_ingest: datetime | None = None
    """Of what is news."""
    failure: str = ""
    failed_version: int = 0
    is_outdated: bool = False
    """Begun with a state that is older than what is stored: nothing may be folded onto that."""

    @classmethod
    def on(
        cls, base: State, objects: Mapping[str, Row], *, upcasters: Upcasters = UPCASTERS, known_version: int = 0
    ) -> Folded:
        """Nothing folded yet; `objects` has the rows of those that the events change, and may still get some."""
        return cls(
            surfaces=SurfaceFold(base, {Surface.BUSINESS_OBJECTS: objects}),
            upcasters=upcasters,
            known_version=known_version,
        )

    @property
    def state(self) -> State:
        """The state so far."""
        return self.surfaces.state

    def failed(self, exc: Exception) -> Folded:
        """The same, with what stopped it."""
        return replace(self, failure=f"{type(exc).__name__}: {exc}", failed_version=self.state.stream_version + 1)


def unseen(events: Iterable[StoredEvent], version: int) -> list[StoredEvent]:
    """Events above a version, each once, in their order."""
    by_version = {event.stream_version: event for event in events if event.stream_version > version}
    return [by_version[number] for number in sorted(by_version)]


def follows(events: Sequence[StoredEvent], version: int) -> bool:
    """Whether events continue a version without a gap; no events do."""
    return [event.stream_version for event in events] == list(range(version + 1, version + 1 + len(events)))


def mentioned_objects(events: Iterable[StoredEvent], upcasters: Upcasters = UPCASTERS) -> frozenset[str]:
    """Keys of business objects that events change; most events need not be read to know that they change none."""
    found: set[str] = set()
    for event in events:
        if _MENTIONS_OBJECT in event.body:
            with suppress(Exception):  # whoever folds it finds out; other executions of a batch do not pay for it
                found |= touched_objects([record(event, upcasters)])
    return frozenset(found)


def fold_on(before: Folded, events: Iterable[StoredEvent]) -> Folded:
    """Fold further; never raises, because one bad execution must not harm the others of its batch."""
    surfaces, count, oldest = before.surfaces, before.events, before.oldest_ingest
    for event in events:
        try:
            recorded = record(event, before.upcasters)
            if recorded.envelope.execution_id != surfaces.state.execution.execution_id:
                raise Corrupt(f"it holds an event of execution {recorded.envelope.execution_id}")
            surfaces.add(recorded)
        except Exception as exc:
            return replace(before, events=count, oldest_ingest=oldest).failed(exc)
        count += 1
        if oldest is None and event.stream_version > before.known_version:
            oldest = event.ingest_time
    return replace(before, events=count, oldest_ingest=oldest)
