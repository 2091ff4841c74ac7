"""Rows of surfaces as tables hold them: one column for each field of their shape, so that both say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg
from noetl_core.canonical import JsonObject, decode, encode
from noetl_core.surfaces.execution_rows import routing_facts
from noetl_core.surfaces.shapes import OWNER_FIELDS, SHAPES, Kind, Row, Surface, without_absent
from noetl_core.timestamps import format_time

TABLES: Final[Mapping[Surface, str]] = {
    Surface.COMMANDS: "command",
    Surface.LOOPS: "loop",
    Surface.STAGES: "stage",
    Surface.FRAMES: "frame",
    Surface.BUSINESS_OBJECTS: "business_object",
}
"""All but the execution's own row, which has a statement to itself."""
KEYS: Final[Mapping[Surface, str]] = {
    Surface.COMMANDS: "command_id",
    Surface.LOOPS: "loop_id",
    Surface.STAGES: "stage_id",
    Surface.FRAMES: "frame_id",
    Surface.BUSINESS_OBJECTS: "object_key",
}

_TYPES: Final[Mapping[Kind, str]] = {
    Kind.TEXT: "text",
    Kind.INTEGER: "bigint",
    Kind.BOOLEAN: "boolean",
    Kind.TIME: "timestamptz",
    Kind.ID: "bigint",
    Kind.JSON: "json",
}


def upsert(surface: Surface, *, parameter: int) -> str:
    """Writes the rows of those executions that `written` names; a part of the statement that writes these.

    All rows are one parameter, a document. As columns, an array for each field, they were many: the driver asks of
    each array and each value in it whether that is a sequence, which took longer than to write them.
    """
    fields = SHAPES[surface].fields
    names = ", ".join(f'"{name}"' for name in fields)
    # JSON comes as the text of it, so that nothing in it is read before it is stored.
    typed = ", ".join(f'"{name}" {"text" if kind is Kind.JSON else _TYPES[kind]}' for name, kind in fields.items())
    values = ", ".join(f'incoming."{name}"{"::json" if kind is Kind.JSON else ""}' for name, kind in fields.items())
    kept = {"execution_id", *SHAPES[surface].identity}
    updates = ", ".join(f'"{name}" = excluded."{name}"' for name in fields if name not in kept)
    return f"""{TABLES[surface]}_rows AS (
    INSERT INTO noetl.{TABLES[surface]} AS stored (tenant_id, organization_id, {names})
    SELECT written.tenant_id, written.organization_id, {values}
    FROM json_to_recordset(${parameter}::json) AS incoming ({typed})
    JOIN written USING (execution_id)
    ON CONFLICT (execution_id, {KEYS[surface]}) DO UPDATE SET {updates}
    WHERE stored.stream_version <= excluded.stream_version
)"""  # noqa: S608 - made of the names of fields


def listing(surface: Surface) -> str:
    """Rows of some executions behind a place, by execution and key; only as many as a page may have.

    A row that is another owner's than its execution comes along and tells so: reapers would act on it.
    """
    columns = ", ".join(
        f'"{name}"::text' if kind is Kind.JSON else f'"{name}"' for name, kind in SHAPES[surface].fields.items()
    )
    key = KEYS[surface]
    return f"""
SELECT execution_id AS at, {key} AS row_key, {columns}, tenant_id, organization_id,
       (tenant_id, organization_id) = (
           SELECT tenant_id, organization_id FROM noetl.execution AS own WHERE own.execution_id = stored.execution_id
       ) AS is_own
FROM noetl.{TABLES[surface]} AS stored
WHERE execution_id = ANY($1::bigint[]) AND (execution_id, {key}) > ($2, $3)
ORDER BY execution_id, {key}
LIMIT $4"""  # noqa: S608 - made of the names of fields


LISTINGS: Final[Mapping[Surface, str]] = {surface: listing(surface) for surface in TABLES}

_OBJECT_COLUMNS = ", ".join(
    f'stored."{name}"::text' if kind is Kind.JSON else f'stored."{name}"'
    for name, kind in SHAPES[Surface.BUSINESS_OBJECTS].fields.items()
)
OBJECTS: Final = f"""
SELECT stored.execution_id AS at, stored.object_key, {_OBJECT_COLUMNS}
FROM unnest($1::bigint[], $2::text[]) AS asked (execution_id, object_key)
JOIN noetl.business_object AS stored USING (execution_id, object_key)"""  # noqa: S608 - made of the names of fields


_JSON_FIELDS: Final[Mapping[Surface, tuple[str, ...]]] = {
    surface: tuple(name for name, kind in SHAPES[surface].fields.items() if kind is Kind.JSON) for surface in TABLES
}


def document_of(surface: Surface, rows: Sequence[Row]) -> str:
    """The parameter of `upsert`."""
    return encode([_with_texts(row, names) for row in rows] if (names := _JSON_FIELDS[surface]) else rows).decode()


def _with_texts(row: Row, names: Sequence[str]) -> JsonObject:
    return {**row, **{name: encode(row[name]).decode() for name in names if row.get(name) is not None}}


def row_of(surface: Surface, record: asyncpg.Record, *, offset: int) -> JsonObject:
    """A row as it was written, from the columns that begin at a place."""
    fields = SHAPES[surface].fields
    return without_absent(
        {name: _from_column(kind, record[offset + place]) for place, (name, kind) in enumerate(fields.items())}
    )


def listed_row_of(surface: Surface, record: asyncpg.Record) -> JsonObject:
    """A row of a listing; whose it is, it says only if that is not the owner of its execution."""
    row = row_of(surface, record, offset=2)
    return row if record["is_own"] else {**row, **{name: record[name] for name in OWNER_FIELDS}}


EXECUTION_ROWS: Final = """
SELECT execution_id, execution_id::text AS row_key, stream_version, tenant_id, organization_id, path, version,
       catalog_id, parent_execution_id, status, start_time, end_time, error::text AS error, state::text AS state,
       last_projected_event_id, last_event_type, last_node_name, event_time_watermark
FROM noetl.execution
WHERE execution_id = ANY($1::bigint[]) AND execution_id > $2
ORDER BY execution_id
LIMIT $3"""


def execution_row_of(record: asyncpg.Record) -> JsonObject:
    """The execution's own row, from its columns; routing facts are a part of the stored state."""
    state = decode(record["state"].encode())
    fields = state if isinstance(state, dict) else {}
    parent = record["parent_execution_id"]
    return without_absent(
        {
            "execution_id": str(record[0]),
            "tenant_id": record["tenant_id"],
            "organization_id": record["organization_id"],
            "path": record["path"],
            "version": record["version"],
            "catalog_id": record["catalog_id"],
            "parent_execution_id": str(parent) if parent is not None else None,
            "status": record["status"],
            "start_time": format_time(record["start_time"]),
            "end_time": format_time(record["end_time"]) if record["end_time"] else None,
            "error": decode(record["error"].encode()) if record["error"] is not None else None,
            "state": routing_facts(fields),
            "stream_version": record["stream_version"],
            "last_event_id": str(record["last_projected_event_id"]),
            "last_event_type": record["last_event_type"],
            "last_node_name": record["last_node_name"],
            "event_time_watermark": format_time(record["event_time_watermark"]),
            "unknown_events": fields.get("unknown_events", 0),
        }
    )


def _from_column(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    if kind is Kind.ID:
        return str(value)
    if isinstance(value, datetime):
        return format_time(value)
    return decode(value.encode()) if kind is Kind.JSON else value
