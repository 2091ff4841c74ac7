"""What an export has to read, cut into slices: each is read and written by itself, and is one batch of the lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from noetl_core.errors import Corrupt
from noetl_core.lake.manifest import LakeFile
from noetl_core.ports.streams import StreamHead


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """Events of one execution that the lake does not have yet, first and last included."""

    execution_id: int
    tenant_id: str
    first: int
    last: int
    checksum: str = ""
    """Of the last event, where the head says it; empty where a history is cut."""

    @property
    def events(self) -> int:
        """How many there are: versions have no gaps."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The same events whoever writes it and however often, so its files are the same too."""

    batch: int
    """Known before anything is written: nobody else may take the number, or the export ends."""
    ranges: tuple[VersionRange, ...]
    """Never empty."""

    @property
    def events(self) -> int:
        """Of all ranges."""
        return sum(one.events for one in self.ranges)

    @property
    def positions(self) -> dict[int, int]:
        """How far the lake has come with it, of each execution."""
        return {one.execution_id: one.last for one in self.ranges}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSlice:
    """What stands aside of a slice, and where its chain has to be tied to its neighbours."""

    files: tuple[LakeFile, ...]
    follows: str
    """What the first event says of the one before it."""
    ends: str
    """Checksum of the last event."""


def missing_ranges(heads: Iterable[StreamHead], positions: Mapping[int, int]) -> list[VersionRange]:
    """What each execution has beyond the lake, in the order of heads."""
    return [
        VersionRange(
            execution_id=head.execution_id,
            tenant_id=head.tenant_id,
            first=positions.get(head.execution_id, 0) + 1,
            last=head.version,
            checksum=head.checksum,
        )
        for head in heads
        if positions.get(head.execution_id, 0) < head.version
    ]


def cut(ranges: Iterable[VersionRange], *, events: int, first_batch: int) -> Iterator[Slice]:
    """Slices of so many events, only the last has fewer; a history that does not fit goes on in the next one."""
    batch, room = first_batch, events
    taken: list[VersionRange] = []
    for one in ranges:
        left = one
        while left.events > room:
            fits, left = _split(left, room)
            yield Slice(batch=batch, ranges=(*taken, fits))
            batch, room, taken = batch + 1, events, []
        taken.append(left)
        room -= left.events
        if room == 0:
            yield Slice(batch=batch, ranges=tuple(taken))
            batch, room, taken = batch + 1, events, []
    if taken:
        yield Slice(batch=batch, ranges=tuple(taken))


def check_joint(before: tuple[Slice, WrittenSlice] | None, slice_: Slice, written: WrittenSlice) -> None:
    """Raises `Corrupt` where a history was cut and its two ends do not belong to each other."""
    if before is None:
        return
    last, first = before[0].ranges[-1], slice_.ranges[0]
    if last.execution_id == first.execution_id and before[1].ends != written.follows:
        raise Corrupt(
            f"execution {first.execution_id}: event {first.first} follows {written.follows or 'nothing'}, "
            f"the event before it has {before[1].ends}"
        )


def _split(one: VersionRange, events: int) -> tuple[VersionRange, VersionRange]:
    last = one.first + events - 1
    return replace(one, last=last, checksum=""), replace(one, first=last + 1)
