"""Where a lake is kept: whole files, and names that only one writer can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from noetl_core.envelope import StoredEvent


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

    def list(self, prefix: str) -> Sequence[str]:
        """Files below a directory, in the order of their names."""
        ...

    def move(self, path: str, target: str) -> None:
        """Give a file its place; harmless when it stands there already. Raises `Corrupt` if it is nowhere."""
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

    def encode_positions(self, positions: Mapping[int, int]) -> bytes:
        """Versions by execution."""
        ...

    def decode_positions(self, data: bytes) -> dict[int, int]:
        """What was encoded."""
        ...
