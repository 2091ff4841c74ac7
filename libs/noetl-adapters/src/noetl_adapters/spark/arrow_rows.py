"""Chunks of one table as Arrow tables of one schema: some are Arrow, some JSON, and a column may differ in type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from noetl_core.canonical import decode, encode
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE


def read_table(data: bytes, media_type: str) -> pa.Table:
    """The rows of one payload."""
    if media_type == TABLE_MEDIA_TYPE:
        try:
            with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
                return reader.read_all()
        except (pa.ArrowInvalid, OSError) as exc:
            raise Corrupt(f"not an Arrow stream: {exc}") from exc
    return _from_json(data)


def read_schema(head: bytes, media_type: str) -> pa.Schema:
    """The columns of one payload; of an Arrow stream its first bytes are enough."""
    if media_type == TABLE_MEDIA_TYPE:
        return pa.ipc.read_schema(pa.BufferReader(head))
    return _from_json(head).schema


def common_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One that holds the rows of all: numbers widen, what has no common type becomes text, nothing but null too."""
    kinds: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            kinds[field.name] = _common(kinds.get(field.name, pa.null()), field.type)
    return pa.schema([(name, pa.string() if pa.types.is_null(kind) else kind) for name, kind in kinds.items()])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with these columns; one that they lack is null."""
    columns = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        columns.append(pa.nulls(table.num_rows, field.type) if at < 0 else _cast(table.column(at), field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def write_stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """One Arrow IPC stream, the form in which tables are stored."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    try:
        fields = (pa.schema([("c", one)]), pa.schema([("c", other)]))
        return pa.unify_schemas(fields, promote_options="permissive").field("c").type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        if not pa.types.is_string(kind):
            raise InvalidInput(f"a column of {column.type} cannot be read as {kind}: {exc}") from exc
        return pa.chunked_array([pa.array([_text(value) for value in column.to_pylist()], pa.string())])


def _from_json(data: bytes) -> pa.Table:
    value = decode(data)
    rows: list[Any] = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        held = value.get("rows")
        rows = held if isinstance(held, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise InvalidInput("rows are maps, and these are not")
    return table_of(rows)


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows that are maps as a table; a column that a row lacks is null."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([_text(value) for value in values], pa.string())  # of mixed types: JSON tells them apart


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else encode(value).decode()
