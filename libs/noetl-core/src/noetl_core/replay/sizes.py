"""How much a replayed state holds, and how much of it one process holds to answer one question."""

from __future__ import annotations

from typing import Final

from noetl_core.canonical import encode
from noetl_core.surfaces.shapes import Row
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What grows with a history: of a state, or the most that a state may have."""

    rows: int
    payloads: int
    """Addresses that events refer to."""
    attribute_bytes: int
    """Of all business objects, as canonical JSON: one row, whatever it holds."""

    def beyond(self, most: Size) -> str:
        """What there is too much of, in words; empty if it is within all bounds."""
        if self.rows > most.rows:
            return f"more than {most.rows} rows"
        if self.payloads > most.payloads:
            return f"more than {most.payloads} payloads"
        if self.attribute_bytes > most.attribute_bytes:
            return f"more than {most.attribute_bytes} bytes of attributes of business objects"
        return ""


MOST_IN_ONE_PIECE: Final = Size(rows=500_000, payloads=500_000, attribute_bytes=64 * 1024 * 1024)
"""Also of what a replay began with; what has more is for jobs that have the memory."""


def attribute_bytes(row: Row | None) -> int:
    """What a business object adds to the size; 0 of one that is not there."""
    return len(encode(row.get("attributes", {}))) if row is not None else 0
