"""One execution on its way from what is stored of it to what will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from noetl_core.envelope import StoredEvent
from noetl_core.fold import State
from noetl_core.surfaces.shapes import Row
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import replace
from noetl_servicekit.tracing import span
from opentelemetry.trace import Span

from noetl_projector.application.fold_events import Folded, fold_on, follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Events of one execution, and the version up to which its row is to go at least."""

    execution_id: int
    shard: int
    events: tuple[StoredEvent, ...] = ()
    target: int = 0
    trace: str = ""
    log_branch: str = ""
    """Of the log that the events are said to be from; empty if nobody says so, or there are none."""

    def begins_after(self, moment: datetime) -> bool:
        """Whether the first event is at hand, and so new that there is no row yet, most likely.

        If there is one after all, it refuses what is older, and what is newer was folded from the first event.
        """
        return bool(self.events) and self.events[0].stream_version == 1 and self.events[0].ingest_time > moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What is stored, and the events above it that are in hand; both may be less than it takes."""

    wanted: Wanted
    base: State
    fresh: Sequence[StoredEvent]
    upcasters: Upcasters = UPCASTERS
    known_version: int = 0
    """Of the stored row, if that is not folded on, but made again from the start."""

    @property
    def execution_id(self) -> int:
        """Whose."""
        return self.wanted.execution_id

    @property
    def shard(self) -> int:
        """Where it belongs."""
        return self.wanted.shard

    @property
    def target(self) -> int:
        """The version to reach."""
        return max(self.wanted.target, self.fresh[-1].stream_version if self.fresh else 0)

    @property
    def needs_reading(self) -> bool:
        """Whether the events in hand do not lead from the state to the target."""
        version = self.base.stream_version
        return not follows(self.fresh, version) or version + len(self.fresh) < self.target

    def begin(self, objects: Mapping[str, Row]) -> Folded:
        """Nothing folded yet."""
        return Folded.on(self.base, objects, upcasters=self.upcasters, known_version=self.known_version)

    def outdated(self) -> Folded:
        """Nothing is folded: what is stored goes further than the state."""
        return replace(self.begin({}), is_outdated=True)

    def is_outdated_by(self, objects: Mapping[str, Row]) -> bool:
        """Whether rows of objects have events that the state has not, which would be applied to them once more.

        An answer to a write may have been lost, or somebody else have written since the state was loaded. Rows of the
        other surfaces are made of the state alone, so for them it is of no account.
        """
        return any(row["stream_version"] > self.base.stream_version for row in objects.values())

    def fold_in_hand(self, objects: Mapping[str, Row]) -> Folded:
        """The state after the events in hand, which change these business objects and no others that are stored."""
        if self.is_outdated_by(objects):
            return self.outdated()
        with self.span():
            return fold_on(self.begin(objects), self.fresh)

    def span(self) -> AbstractContextManager[Span]:
        """In the execution's own trace, as far as it is known."""
        return span(
            "projector.project",
            parent=self.wanted.trace or self.base.execution.trace or None,
            attributes={
                "noetl.execution_id": str(self.execution_id),
                "noetl.from_version": self.base.stream_version + 1,
                "noetl.to_version": self.target,
            },
        )
