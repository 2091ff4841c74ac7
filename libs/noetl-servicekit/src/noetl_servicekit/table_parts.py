"""Reads some rows of a large table by its index: the header and the batches that have them, each proven by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from noetl_core.canonical import JsonObject
from noetl_core.payloads import PayloadRef
from noetl_core.ports.payloads import AttachPayloads
from noetl_core.ports.tables import ReadTables
from noetl_core.table_index import TableIndex
from noetl_core.tabular import Tabular, from_note

AT_ONCE: Final = 8
"""Parts that are read at the same time."""
MAX_SHARE: Final = 0.5
"""Who needs more of a payload than this reads all of it, and so finds a copy near by, or makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeRows:
    """What was read of a table."""

    around: Tabular
    """What the result has besides its rows, and where they stand."""
    segments: Mapping[int, Sequence[JsonObject]] = field(default_factory=dict)
    """Rows by the number of their first one."""


class TableParts:
    """Of one payload store."""

    def __init__(self, payloads: AttachPayloads, tables: ReadTables) -> None:
        self._payloads = payloads
        self._tables = tables

    @staticmethod
    def is_worth_it(ref: PayloadRef, index: TableIndex, batches: Collection[int]) -> bool:
        """Whether reading these batches leaves enough unread."""
        return index.size_of(batches) <= ref.bytes * MAX_SHARE

    async def get(self, ref: PayloadRef, index: TableIndex, batches: Collection[int]) -> SomeRows:
        """The rows of some batches; raises `NotFound` (REFERENCE_NOT_AVAILABLE) or `Corrupt` as a store does."""
        header = await self._payloads.get_part(ref, index.header)
        around = from_note(self._tables.note(header))
        gate = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> Sequence[JsonObject]:
            async with gate:
                data = await self._payloads.get_part(ref, index.batches[number])
            return await asyncio.to_thread(self._tables.decode_json, header + data)

        wanted = sorted(batches)
        rows = await asyncio.gather(*map(read, wanted))
        return SomeRows(
            around=around, segments={index.first_rows[number]: one for number, one in zip(wanted, rows, strict=True)}
        )
