"""Tables as Arrow IPC streams: what goes in comes out as it was, or is refused with the column named. No pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, TypeAlias

import pyarrow as pa
from noetl_core.canonical import JsonObject, JsonValue, encode, sha256_hex
from noetl_core.errors import ColumnRefused, Corrupt
from noetl_core.ports.tables import EncodedTable, TableFacts

from noetl_adapters.arrow.column_types import ColumnTypes, JsonColumnTypes
from noetl_adapters.arrow.json_values import conversion

BATCH_ROWS = 8192
"""Rows of a batch at most, unless there were too many batches: a slice decodes the batches that it touches."""
BATCH_BYTES = 1024 * 1024
"""About as many bytes has a batch at most, so that a few wide rows are read without the others."""
MAX_BATCHES = 128
"""So that what is known of each of them stays small; beyond that, batches grow."""
JSON_KEY = b"noetl.json"
"""Of the schema's metadata: the values are JSON, and this is the note that was kept with them."""

Row = Mapping[str, Any]
Buffer: TypeAlias = bytes | memoryview | pa.Buffer


class ArrowTables:
    """Port `Tables`."""

    def __init__(self, *, compression: Literal["zstd"] | None = None) -> None:
        self._compression = compression
        self._options = pa.ipc.IpcWriteOptions(compression=compression)

    def encode(self, rows: Sequence[Row]) -> EncodedTable:
        """One stream of batches; raises `ColumnRefused` where reading it back would give something else."""
        return self._encode(rows, _TYPED, metadata=None)

    def encode_json(self, rows: Sequence[Mapping[str, JsonValue]], *, note: bytes = b"") -> EncodedTable:
        """The same for JSON values, which come back as canonical JSON has them."""
        return self._encode(rows, _JSON, metadata={JSON_KEY: note})

    def decode(self, data: Buffer, *, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The rows of a range; batches outside of it are passed over."""
        return [row for batch in _slices(data, start, stop) for row in batch.to_pylist()]

    def decode_json(self, data: Buffer, *, start: int = 0, stop: int | None = None) -> list[JsonObject]:
        """The rows of a range as JSON."""
        return [row for batch in _slices(data, start, stop) for row in _json_rows(batch)]

    def rows_json(self, data: Buffer) -> ArrowRows:
        """The rows as JSON, made when they are taken."""
        return ArrowRows(data)

    def note(self, data: Buffer) -> bytes:
        """What was kept with the columns."""
        with _reading(), open_stream(data) as reader:
            return _note(reader.schema) or b""

    def facts(self, source: BinaryIO) -> TableFacts:
        """What is in a stream, counted without making rows of it."""
        with _reading(), pa.ipc.open_stream(source) as reader:
            return _facts(reader.schema, row_count=sum(batch.num_rows for batch in reader))

    def _encode(self, rows: Sequence[Row], types: ColumnTypes, *, metadata: dict[bytes, bytes] | None) -> EncodedTable:
        names = _columns(rows)
        arrays = [_array(name, [row[name] for row in rows], types) for name in names]
        schema = _schema(names, arrays, metadata)
        sink = pa.BufferOutputStream()
        batches: list[tuple[int, int]] = []
        table = pa.Table.from_arrays(arrays, schema=schema)
        header_bytes = position = schema.serialize().size
        with pa.ipc.new_stream(sink, schema, options=self._options) as writer:
            for batch in table.to_batches(max_chunksize=_batch_rows(table)) if rows else ():
                writer.write_batch(batch)
                batches.append((batch.num_rows, sink.tell() - position))
                position = sink.tell()
        data = sink.getvalue().to_pybytes()
        return EncodedTable(
            data=data,
            facts=_facts(schema, row_count=len(rows)),
            header_bytes=header_bytes,
            batches=tuple(batches),
            plain_bytes=len(data) if self._compression is None else _plain_bytes(table),
        )


class ArrowRows:
    """Port `TakeRows`: one batch is open at a time, and of it only a slice becomes Python values."""

    def __init__(self, data: Buffer) -> None:
        with _reading():
            self._reader = open_stream(data)
        self._batch: pa.RecordBatch | None = None
        self._taken = 0

    def take(self, count: int) -> list[JsonObject]:
        """The next rows."""
        rows: list[JsonObject] = []
        while len(rows) < count and (batch := self._open_batch()) is not None:
            part = batch.slice(self._taken, count - len(rows))
            rows.extend(_json_rows(part))
            self._taken += part.num_rows
        return rows

    def _open_batch(self) -> pa.RecordBatch | None:
        """The one that has rows left; None at the end."""
        while self._batch is None or self._taken == self._batch.num_rows:
            self._batch, self._taken = None, 0  # the last one goes before the next one comes
            try:
                with _reading():
                    self._batch = self._reader.read_next_batch()
            except StopIteration:
                return None
        return self._batch


def open_stream(data: Buffer) -> pa.RecordBatchReader:
    """The batches of a payload without a copy of its bytes, which must stay where they are while these are used."""
    return pa.ipc.open_stream(pa.BufferReader(data if isinstance(data, pa.Buffer) else pa.py_buffer(data)))


def open_table(data: Buffer) -> pa.Table:
    """The whole table of a payload; without compression its columns point into the given bytes."""
    with _reading(), open_stream(data) as reader:
        return reader.read_all()


_TYPED = ColumnTypes()
_JSON = JsonColumnTypes()


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


def _array(name: str, values: Sequence[Any], types: ColumnTypes) -> pa.Array:
    try:
        return pa.array(values, type=types.of(name, values))
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as exc:
        # An integer beyond 64 bits, half a surrogate pair, an unknown zone, a key that is no text.
        raise ColumnRefused(name, str(exc)) from exc


def _schema(names: Sequence[str], arrays: Sequence[pa.Array], metadata: dict[bytes, bytes] | None) -> pa.Schema:
    fields = []
    for name, array in zip(names, arrays, strict=True):
        try:
            fields.append(pa.field(name, array.type))
        except ValueError as exc:  # half a surrogate pair
            raise ColumnRefused(ascii(name), str(exc)) from exc
    return pa.schema(fields, metadata=metadata)


def _batch_rows(table: pa.Table) -> int:
    """Depends on the rows alone, so that the same rows are the same bytes."""
    of_a_row: int = table.nbytes // table.num_rows + 1
    fewest: int = -(-table.num_rows // MAX_BATCHES)
    return max(min(BATCH_ROWS, BATCH_BYTES // of_a_row), fewest, 1)


def _plain_bytes(table: pa.Table) -> int:
    counted = pa.MockOutputStream()
    with pa.ipc.new_stream(counted, table.schema) as writer:
        writer.write_table(table)
    size: int = counted.size()
    return size


def _slices(data: Buffer, start: int, stop: int | None) -> Iterator[pa.RecordBatch]:
    position = 0
    with _reading(), open_stream(data) as reader:
        for batch in reader:
            first, end = max(start - position, 0), batch.num_rows
            if stop is not None:
                end = min(end, stop - position)
            if end > first:
                yield batch.slice(first, end - first)
            position += batch.num_rows
            if stop is not None and position >= stop:
                return


def _json_rows(batch: pa.RecordBatch) -> Iterator[JsonObject]:
    is_json = _note(batch.schema) is not None
    columns = []
    for column in batch.columns:
        convert = conversion(column.type, is_json=is_json)
        values = column.to_pylist()
        columns.append(values if convert is None else [convert(value) for value in values])
    names = batch.schema.names
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _note(schema: pa.Schema) -> bytes | None:
    return (schema.metadata or {}).get(JSON_KEY)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as exc:
        raise Corrupt(f"not an Arrow stream: {exc}") from exc


def _facts(schema: pa.Schema, *, row_count: int) -> TableFacts:
    described = [[field.name, str(field.type)] for field in schema]
    return TableFacts(
        columns=tuple(schema.names), row_count=row_count, schema_digest=sha256_hex(encode({"columns": described}))
    )


def schema_digest(data: Buffer) -> str:
    """Of a stream, from its first message; raises `Corrupt` when it is no table."""
    try:
        with open_stream(data) as reader:
            return _facts(reader.schema, row_count=0).schema_digest
    except (pa.ArrowException, OSError) as exc:  # bytes of anybody may look like a table at first
        raise Corrupt(f"not an Arrow stream: {exc}") from exc
