"""Folds what follows a state without a gap, and stops at the first event that cannot be folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt
from noetl_core.fold import State, fold
from noetl_core.recorded import record
from noetl_core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A state, how it came about, and why it is not further."""

    state: State
    events: int = 0
    oldest_ingest: datetime | None = None
    failure: str = ""
    failed_version: int = 0

    def failed(self, exc: Exception) -> Folded:
        """The same, with what stopped it."""
        return replace(self, failure=f"{type(exc).__name__}: {exc}", failed_version=self.state.stream_version + 1)


def unseen(events: Iterable[StoredEvent], version: int) -> list[StoredEvent]:
    """Events above a version, each once, in their order."""
    by_version = {event.stream_version: event for event in events if event.stream_version > version}
    return [by_version[number] for number in sorted(by_version)]


def follows(events: Sequence[StoredEvent], version: int) -> bool:
    """Whether events continue a version without a gap; no events do."""
    return all(event.stream_version == expected for expected, event in enumerate(events, start=version + 1))


def fold_on(before: Folded, events: Iterable[StoredEvent]) -> Folded:
    """Fold further; never raises, because one bad execution must not harm the others of its batch."""
    state, count, oldest = before.state, before.events, before.oldest_ingest
    for event in events:
        try:
            recorded = record(event)
            if recorded.envelope.execution_id != state.execution.execution_id:
                raise Corrupt(f"it holds an event of execution {recorded.envelope.execution_id}")
            state = fold(state, recorded)
        except Exception as exc:
            return Folded(state=state, events=count, oldest_ingest=oldest).failed(exc)
        count += 1
        oldest = oldest or event.ingest_time
    return Folded(state=state, events=count, oldest_ingest=oldest)
