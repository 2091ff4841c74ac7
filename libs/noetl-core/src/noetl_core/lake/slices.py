"""What an export has to read, cut into slices: each is read and written by itself, and is one batch of the lake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from noetl_core.errors import LakeDiverged
from noetl_core.lake.manifest import LakeFile, Position
from noetl_core.ports.streams import StreamHead

_NOTHING: Final = Position(version=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """Events of one execution that the lake does not have yet, first and last included."""

    execution_id: int
    tenant_id: str
    first: int
    last: int
    checksum: str | None = None
    """Of the last event, where the head says it; None where a history is cut."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSlice:
    """What stands aside of a slice, and where each of its ranges has to be tied to what the lake has before it."""

    files: tuple[LakeFile, ...]
    follows: tuple[str, ...]
    """What the first event of each range says of the one before it."""
    ends: tuple[str, ...]
    """Checksum of the last event of each range."""


def missing_ranges(heads: Iterable[StreamHead], positions: Mapping[int, Position]) -> list[VersionRange]:
    """What each execution has beyond the lake, in the order of heads; raises `LakeDiverged` if one has less."""
    ranges: list[VersionRange] = []
    for head in heads:
        position = positions.get(head.execution_id, _NOTHING)
        _check_head(head, position)
        if position.version < head.version:
            ranges.append(
                VersionRange(
                    execution_id=head.execution_id,
                    tenant_id=head.tenant_id,
                    first=position.version + 1,
                    last=head.version,
                    checksum=head.checksum,
                )
            )
    return ranges


def check_known(positions: Mapping[int, Position], execution_ids: Collection[int]) -> None:
    """Raises `LakeDiverged` if the lake has an execution that is not among all those of the log."""
    for execution_id, position in positions.items():
        if execution_id not in execution_ids:
            told = f"the lake has events up to {position.version}, and the log has none of it"
            raise LakeDiverged(execution_id, told)


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


def check_joints(positions: Mapping[int, Position], slice_: Slice, written: WrittenSlice) -> None:
    """Raises `LakeDiverged` where a history goes on in a slice and does not follow what the lake has of it.

    That may be of the slice before or of an earlier run: either way, versions alone do not make a history of them.
    """
    for one, follows in zip(slice_.ranges, written.follows, strict=True):
        known = positions.get(one.execution_id, _NOTHING)
        if known.checksum and follows != known.checksum:
            told = f"event {one.first} follows {follows or 'nothing'}, the lake's event before it has {known.checksum}"
            raise LakeDiverged(one.execution_id, told)


def positions_after(slice_: Slice, written: WrittenSlice) -> dict[int, Position]:
    """How far the lake has come with a slice, of each execution in it."""
    return {
        one.execution_id: Position(version=one.last, checksum=ends)
        for one, ends in zip(slice_.ranges, written.ends, strict=True)
    }


def _check_head(head: StreamHead, position: Position) -> None:
    if head.version < position.version:
        told = f"the lake has events up to {position.version}, and the log ends at {head.version}"
        raise LakeDiverged(head.execution_id, told)
    if head.version == position.version and position.checksum not in ("", head.checksum):
        told = f"event {head.version} has checksum {position.checksum} in the lake and {head.checksum} in the log"
        raise LakeDiverged(head.execution_id, told)


def _split(one: VersionRange, events: int) -> tuple[VersionRange, VersionRange]:
    last = one.first + events - 1
    return replace(one, last=last, checksum=None), replace(one, first=last + 1)
