"""The one place where results become bytes and stored bytes become values, whatever their form (ADR 0027)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from noetl_core.canonical import JsonValue, decode, encode
from noetl_core.errors import ColumnRefused, NotCanonical
from noetl_core.payloads import PayloadRef
from noetl_core.ports.payloads import AttachPayloads
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_core.ports.tables import EncodedTable, ReadTables, Tables, TakeRows, is_table
from noetl_core.table_index import TableIndex
from noetl_core.tabular import MAX_REST_BYTES, Tabular, from_note, tabular

MEDIA_TYPE: Final = "application/json"
MAX_BYTES_AT_ONCE: Final = 64 * 1024
"""More are decoded in a thread, so that leases are kept up meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedValue:
    """The bytes of a value, what they are, and what is known of the table if they are one."""

    data: bytes
    media_type: str = MEDIA_TYPE
    table: EncodedTable | None = None
    apart: Tabular | None = None

    @property
    def plain_bytes(self) -> int:
        """The size by which it is judged whether a result is large."""
        return len(self.data) if self.table is None else self.table.plain_bytes

    def index(self) -> TableIndex | None:
        """Where its rows lie, for who reads a few of them."""
        if self.table is None or self.apart is None:
            return None
        return TableIndex.of(self.table, self.apart.places)


def encode_value(value: JsonValue, tables: Tables) -> EncodedValue:
    """A table if the value is one that comes back as it is, else canonical JSON; raises `NotCanonical`.

    A column that no table can hold (of mixed types, rows that lack columns) is no reason to fail: JSON holds it.
    """
    apart = tabular(value)
    if apart is not None:
        try:
            note = apart.note()
            if len(note) <= MAX_REST_BYTES:
                table = tables.encode_json(apart.rows, note=note)
                return EncodedValue(data=table.data, media_type=TABLE_MEDIA_TYPE, table=table, apart=apart)
        except (ColumnRefused, NotCanonical):
            pass  # and what JSON cannot hold either is refused below, with its place
    return EncodedValue(data=encode(value))


def decode_value(data: bytes | memoryview, tables: ReadTables) -> JsonValue:
    """The value of stored bytes; what they are is seen from them, since not every reference knows."""
    if not is_table(data):
        return decode(data)
    value: JsonValue = from_note(tables.note(data)).whole(tables.decode_json(data))
    return value


class StoredValues:
    """Reads values by reference."""

    def __init__(self, payloads: AttachPayloads, tables: ReadTables) -> None:
        self._payloads = payloads
        self._tables = tables

    async def get(self, ref: PayloadRef) -> JsonValue:
        """The value; raises `NotFound` (REFERENCE_NOT_AVAILABLE) when its bytes are gone."""
        data = await self._payloads.attach(ref)  # a table in shared memory is read where it is
        if len(data) > MAX_BYTES_AT_ONCE:
            return await asyncio.to_thread(decode_value, data, self._tables)
        return decode_value(data, self._tables)

    async def open_rows(self, ref: PayloadRef) -> TakeRows:
        """The rows of a payload that has nothing else; of a table, only those are made that are taken."""
        data = await self._payloads.attach(ref)
        if is_table(data) and not self._tables.note(data):
            return self._tables.rows_json(data)
        value = await asyncio.to_thread(decode_value, data, self._tables)
        return _Listed(value if isinstance(value, list) else [value])


class _Listed:
    """Rows that all exist already."""

    def __init__(self, rows: Sequence[JsonValue]) -> None:
        self._rows = iter(rows)

    def take(self, count: int) -> list[JsonValue]:
        return list(itertools.islice(self._rows, count))
