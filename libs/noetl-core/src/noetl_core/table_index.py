"""Where the batches of a stored table lie, so that a few rows can be read, and proven, without the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from noetl_core.canonical import JsonObject, sha256_hex
from noetl_core.payloads import PayloadPart
from noetl_core.ports.tables import EncodedTable
from noetl_core.tabular import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIndex:
    """Kept in the view of a large result, whose bytes are verified: so are those that it names."""

    places: tuple[Place, ...]
    header: PayloadPart
    batches: tuple[PayloadPart, ...]
    rows: tuple[int, ...]
    """How many rows each batch has."""

    @property
    def row_count(self) -> int:
        """Of the whole table."""
        return sum(self.rows)

    @property
    def first_rows(self) -> tuple[int, ...]:
        """The number of the row with which each batch begins."""
        return tuple(accumulate(self.rows, initial=0))[: len(self.rows)]

    def batches_of(self, ranges: Iterable[tuple[int, int]]) -> frozenset[int]:
        """The batches in which rows of these ranges lie."""
        wanted = [one for one in ranges if one[0] < one[1]]
        return frozenset(
            number
            for number, (first, count) in enumerate(zip(self.first_rows, self.rows, strict=True))
            if any(start < first + count and first < stop for start, stop in wanted)
        )

    def size_of(self, batches: Iterable[int]) -> int:
        """How many bytes have to be read for them."""
        return self.header.bytes + sum(self.batches[number].bytes for number in batches)

    @classmethod
    def of(cls, table: EncodedTable, places: tuple[Place, ...]) -> TableIndex:
        """The index of a table that is about to be stored."""
        sizes = [size for _, size in table.batches]
        starts = accumulate(sizes, initial=table.header_bytes)
        return cls(
            places=places,
            header=_part(table.data, 0, table.header_bytes),
            batches=tuple(_part(table.data, start, size) for start, size in zip(starts, sizes, strict=False)),
            rows=tuple(count for count, _ in table.batches),
        )

    def to_json(self) -> JsonObject:
        """Where a batch begins follows from the sizes of those before it."""
        return {
            "at": [[*place] for place in self.places],
            "header": [self.header.bytes, self.header.sha256],
            "batches": [[rows, part.bytes, part.sha256] for rows, part in zip(self.rows, self.batches, strict=True)],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TableIndex:
        """Read the form that is stored."""
        size, sha256 = stored["header"]
        starts = accumulate((one[1] for one in stored["batches"]), initial=size)
        return cls(
            places=tuple(tuple(place) for place in stored["at"]),
            header=PayloadPart(start=0, bytes=size, sha256=sha256),
            batches=tuple(
                PayloadPart(start=start, bytes=one[1], sha256=one[2])
                for start, one in zip(starts, stored["batches"], strict=False)
            ),
            rows=tuple(one[0] for one in stored["batches"]),
        )


def _part(data: bytes, start: int, size: int) -> PayloadPart:
    return PayloadPart(start=start, bytes=size, sha256=sha256_hex(data[start : start + size]))
