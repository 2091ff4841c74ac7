"""The port through which a tool gives out the rows of a streaming call."""

from __future__ import annotations

from typing import Protocol

from noetl_core.canonical import JsonValue


class ChunkSink(Protocol):
    """Where a tool puts the rows of a streaming call."""

    @property
    def chunk_rows(self) -> int:
        """How many rows make a chunk."""
        ...

    async def put(self, rows: list[JsonValue]) -> None:
        """Take the next chunk, when there is room for it. Waiting for that is no part of the call's own time."""
        ...
