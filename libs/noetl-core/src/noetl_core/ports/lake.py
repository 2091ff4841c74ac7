"""Where a lake is kept: whole files, and names that only one writer can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from noetl_core.envelope import StoredEvent
from noetl_core.lake.manifest import Position
from noetl_core.lake.slices import Slice, WrittenSlice


class LakeFiles(Protocol):
    """Files below one directory or prefix; a file is there whole or not at all."""

    def write(self, path: str, data: bytes) -> None:
        """Durable when this returns; what was there is replaced."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """The same, for a name that is free; raises `AlreadyExists` if somebody took it."""
        ...

    def read(self, path: str) -> bytes:
        """All of a file."""
        ...

    def size(self, path: str) -> int:
        """In bytes; raises `FileNotFoundError`."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """Files below a directory, in the order of their names."""
        ...

    def list_unfinished(self, prefix: str) -> Sequence[str]:
        """What somebody was stopped while writing, or writes now; never among those that `list` gives."""
        ...

    def move(self, path: str, target: str, *, size: int) -> None:
        """Give a file of so many bytes its place; harmless when it stands there already.

        Raises `Corrupt` if it is nowhere, or not whole, and `Unavailable` if it may come there yet.
        """
        ...

    def remove(self, path: str) -> None:
        """Harmless when it is not there."""
        ...


class LakeFormat(Protocol):
    """Events as columns."""

    def encode_events(self, events: Sequence[StoredEvent]) -> bytes:
        """One file."""
        ...

    def decode_events(self, data: bytes) -> list[StoredEvent]:
        """What was encoded."""
        ...

    def encode_positions(self, positions: Mapping[int, Position]) -> bytes:
        """Positions by execution."""
        ...

    def decode_positions(self, data: bytes) -> dict[int, Position]:
        """What was encoded."""
        ...


class SliceWriter(Protocol):
    """Reads the events of slices and writes them aside, wherever that is done."""

    @property
    def at_once(self) -> int:
        """How many slices it wants to be given before the first of them is done."""
        ...

    async def write(self, one: Slice) -> WrittenSlice:
        """Its files are whole and wait for their manifest; doing it again gives the same ones.

        Raises `Corrupt` if the log does not have these events, or not as they were sealed.
        """
        ...
