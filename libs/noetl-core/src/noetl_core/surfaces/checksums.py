"""Checksums of surfaces: SHA-256 over canonical JSON, in a form that any language can compute row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from noetl_core.canonical import JsonObject, JsonValue, encode, sha256_hex
from noetl_core.errors import Corrupt, NotCanonical
from noetl_core.surfaces.shapes import FORMAT, Row, Surface

EMPTY: Final = hashlib.sha256().hexdigest()
"""Of a surface without rows."""


class SurfaceChecksum:
    """Takes rows in the order of their keys, by the bytes of their UTF-8; holds none of them."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._last: bytes | None = None
        self.rows = 0

    def add(self, key: str, row: Row) -> None:
        """The canonical JSON of the next row, and a line feed."""
        place = key.encode()
        if self._last is not None and place <= self._last:
            raise ValueError(f"rows come in the order of their keys, each once: {key!r} is late")
        self._last = place
        try:
            self._digest.update(encode(row if type(row) is dict else dict(row)) + b"\n")
        except NotCanonical as exc:
            # Numbers of events were added up to one that JSON has not: nobody's request is wrong, the history is.
            version = str(row.get("stream_version", 0))
            told = f"the row {key!r} cannot be summed as version {version} has left it: {exc.message}"
            raise Corrupt(told, stream_version=version) from exc
        self.rows += 1

    def hexdigest(self) -> str:
        """The checksum of what has come so far."""
        return self._digest.hexdigest()


def surface_checksum(rows: Mapping[str, Row]) -> str:
    """The checksum of all rows of a surface, by key."""
    checksum = SurfaceChecksum()
    for key in in_order(rows):
        checksum.add(key, rows[key])
    return checksum.hexdigest()


def in_order(keys: Iterable[str]) -> list[str]:
    """The order in which rows count: that of the bytes of their keys, which PostgreSQL calls COLLATE "C"."""
    return sorted(keys, key=str.encode)


def total_checksum(surfaces: Mapping[str, JsonValue]) -> str:
    """One checksum for all six: of the canonical JSON object that has theirs."""
    if set(surfaces) != set(Surface):
        raise ValueError(f"a total is over {', '.join(Surface)}, not over {', '.join(sorted(surfaces))}")
    return sha256_hex(encode({str(name): value for name, value in surfaces.items()}))


def checksum_document(
    rows: Mapping[Surface, Mapping[str, Row]], *, execution_id: int, stream_version: int, upcasters: str
) -> JsonObject:
    """The checksums of an execution at a version, and by which rules they were made.

    `upcasters` is the digest of the registry that old events were read with; it is told, not summed, so that a
    registry that changes nothing for a history leaves its checksums alone.
    """
    surfaces: JsonObject = {str(surface): surface_checksum(rows.get(surface, {})) for surface in Surface}
    return {
        "format": FORMAT,
        "execution_id": str(execution_id),
        "stream_version": stream_version,
        "upcasters": upcasters,
        "surfaces": surfaces,
        "rows": {str(surface): len(rows.get(surface, {})) for surface in Surface},
        "checksum": total_checksum(surfaces),
    }
