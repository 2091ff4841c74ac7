"""Replays the history of one execution: events in, the rows and checksums of all surfaces out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from noetl_core.business_objects.events import ObjectChanged
from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent, verify_link
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.fold import State, empty
from noetl_core.recorded import record
from noetl_core.replay.payload_uses import PayloadUses
from noetl_core.replay.sizes import Size, attribute_bytes
from noetl_core.surfaces.checksums import checksum_document
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.surfaces.surface_fold import Rows, SurfaceFold
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass

MAX_EARLY = 100_000
"""Events that may wait for others that come before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """Where a replay may begin instead of at the start: what an earlier one had come to."""

    state: State
    rows: Rows
    payloads: PayloadUses
    checksum: str
    """Of the last event, by which the next one is chained."""
    reached_at: datetime
    attribute_bytes: int
    """Of all its business objects."""
    snapshot_checksum: str
    """Of the snapshot that held it: another one of the same position is another seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """An execution at one version: every row that it has, and what it refers to."""

    state: State
    rows: Rows
    payloads: PayloadUses
    checksum: str
    reached_at: datetime | None
    """When the last event was taken into the log, by the log's clock."""
    size: Size
    upcasters: str
    """Digest of the registry that old events were read with."""

    def checksums(self) -> JsonObject:
        """The checksum document."""
        return checksum_document(
            self.rows,
            execution_id=self.state.execution.execution_id,
            stream_version=self.state.stream_version,
            upcasters=self.upcasters,
        )


class Replay:
    """Takes events as they come: doubled ones count once, early ones wait, a history that was touched is refused."""

    def __init__(self, execution_id: int, *, seed: Seed | None = None, upcasters: Upcasters = UPCASTERS) -> None:
        self._execution_id = execution_id
        self._upcasters = upcasters
        self._base: Mapping[Surface, Mapping[str, Row]] = seed.rows if seed else {}
        self._fold = SurfaceFold(seed.state if seed else empty(execution_id), self._base)
        self._payloads = seed.payloads.copy() if seed else PayloadUses()
        self._checksum = seed.checksum if seed else ""
        self._reached_at: datetime | None = seed.reached_at if seed else None
        self._early: dict[int, StoredEvent] = {}
        self._attribute_bytes = seed.attribute_bytes if seed else 0
        self._object_bytes: dict[str, int] = {}
        """Of the business objects that have changed."""

    @property
    def state(self) -> State:
        """Where it has come to."""
        return self._fold.state

    @property
    def version(self) -> int:
        """Up to which event it has come."""
        return self._fold.state.stream_version

    @property
    def size(self) -> Size:
        """How much the state holds, wherever the replay began."""
        return Size(rows=self._fold.row_count, payloads=self._payloads.addresses, attribute_bytes=self._attribute_bytes)

    def take(self, events: Iterable[StoredEvent]) -> int:
        """Fold what follows; returns the version after it. Whoever delivers need not know what came before."""
        for event in events:
            if event.stream_version == self.version + 1:
                self._add(event)
            elif event.stream_version > self.version:
                self._keep(event)
            while (following := self._early.pop(self.version + 1, None)) is not None:
                self._add(following)
        return self.version

    def result(self) -> Replayed:
        """Everything, at the version that was reached."""
        changed = self._fold.changed()
        rows: dict[Surface, Mapping[str, Any]] = {
            surface: {**self._base.get(surface, {}), **changed[surface]} for surface in Surface
        }
        return Replayed(
            state=self._fold.state,
            rows=rows,
            payloads=self._payloads,
            checksum=self._checksum,
            reached_at=self._reached_at,
            size=self.size,
            upcasters=self._upcasters.digest,
        )

    def changed(self) -> Rows:
        """Only the rows that differ from those that it began with."""
        return self._fold.changed()

    def _keep(self, event: StoredEvent) -> None:
        if len(self._early) >= MAX_EARLY:
            raise Corrupt(f"version {self.version + 1} of execution {self._execution_id} does not come")
        self._early[event.stream_version] = event

    def _add(self, event: StoredEvent) -> None:
        verify_link(event)
        if event.prev_checksum != self._checksum:
            raise Corrupt(
                f"version {event.stream_version} of execution {self._execution_id} does not follow the event before it"
            )
        try:
            recorded = record(event, self._upcasters)
            if (whose := recorded.envelope.execution_id) != self._execution_id:
                raise Corrupt(f"an event of execution {whose} among those of {self._execution_id}")
            self._fold.add(recorded)
            if isinstance(recorded.content, ObjectChanged):
                self._measure(recorded.content.key)
        except Exception as exc:
            # Whatever it is: what the log has is nobody's request, and whoever repairs it needs to know where it is.
            reason = exc.message if isinstance(exc, NoetlError) else f"{type(exc).__name__}: {exc}"
            where = f"version {event.stream_version} of execution {self._execution_id}"
            raise Corrupt(f"{where} ({_named(event)}) cannot be folded: {reason}") from exc
        self._payloads.add(event.body)
        self._checksum = event.checksum
        self._reached_at = event.ingest_time

    def _measure(self, key: str) -> None:
        """The business object that has just changed."""
        before = self._object_bytes.get(key)
        if before is None:
            before = attribute_bytes(self._base.get(Surface.BUSINESS_OBJECTS, {}).get(key))
        now = attribute_bytes(self._fold.changed_parts()[Surface.BUSINESS_OBJECTS][key])
        self._object_bytes[key] = now
        self._attribute_bytes += now - before


def _named(event: StoredEvent) -> str:
    """Which event it is, as far as it can be read."""
    try:
        envelope = event.envelope()
    except Exception:
        return "which cannot be read"
    return f"event {envelope.event_id} of type {envelope.event_type!r}"
