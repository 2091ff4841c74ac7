"""Tables as Arrow IPC streams: what goes in comes out as it was, or is refused with the column named. No pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal

import pyarrow as pa
from noetl_core.canonical import encode, sha256_hex
from noetl_core.errors import ColumnRefused, Corrupt
from noetl_core.ports.tables import EncodedTable, TableFacts

from noetl_adapters.arrow.column_types import column_type

BATCH_ROWS = 8192
"""Rows of a batch: a slice decodes the batches that it touches, and no others."""

Row = Mapping[str, Any]


class ArrowTables:
    """Port `Tables`."""

    def __init__(self, *, compression: Literal["zstd"] | None = None) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=compression)

    def encode(self, rows: Sequence[Row]) -> EncodedTable:
        """One stream of batches; raises `ColumnRefused` where reading it back would give something else."""
        names = _columns(rows)
        arrays = [_array(name, [row[name] for row in rows]) for name in names]
        schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=self._options) as writer:
            if rows:
                table = pa.Table.from_arrays(arrays, schema=schema)
                writer.write_table(table, max_chunksize=BATCH_ROWS)
        data = sink.getvalue().to_pybytes()
        return EncodedTable(data=data, facts=_facts(schema, row_count=len(rows)))

    def decode(self, data: bytes, *, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The rows of a range; batches outside of it are passed over."""
        rows: list[dict[str, Any]] = []
        position = 0
        for batch in _batches(pa.BufferReader(data)):
            first, end = max(start - position, 0), batch.num_rows
            if stop is not None:
                end = min(end, stop - position)
            if end > first:
                rows += batch.slice(first, end - first).to_pylist()
            position += batch.num_rows
            if stop is not None and position >= stop:
                break
        return rows

    def facts(self, source: BinaryIO) -> TableFacts:
        """What is in a stream, counted without making rows of it."""
        try:
            with pa.ipc.open_stream(source) as reader:
                return _facts(reader.schema, row_count=sum(batch.num_rows for batch in reader))
        except (pa.ArrowInvalid, OSError) as exc:
            raise Corrupt(f"not an Arrow stream: {exc}") from exc


def _columns(rows: Sequence[Row]) -> list[str]:
    names = list(rows[0]) if rows else []
    for name in names:
        if not isinstance(name, str):
            raise ColumnRefused(repr(name), "its name is no text")
    wanted = set(names)
    for index, row in enumerate(rows):
        if row.keys() != wanted:
            odd = sorted(map(str, wanted ^ row.keys()))[0]
            raise ColumnRefused(odd, f"not in every row (row {index})")
    if rows and not names:
        raise ColumnRefused("", "rows without columns")
    return names


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    kind = column_type(name, values)
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as exc:
        # An integer beyond 64 bits, half a surrogate pair, an unknown zone.
        raise ColumnRefused(name, str(exc)) from exc


def _batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    try:
        with pa.ipc.open_stream(source) as reader:
            yield from reader
    except (pa.ArrowInvalid, OSError) as exc:
        raise Corrupt(f"not an Arrow stream: {exc}") from exc


def _facts(schema: pa.Schema, *, row_count: int) -> TableFacts:
    described = [[field.name, str(field.type)] for field in schema]
    return TableFacts(
        columns=tuple(schema.names), row_count=row_count, schema_digest=sha256_hex(encode({"columns": described}))
    )
