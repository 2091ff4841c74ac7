"""What an event tells of rows that are stored in parts: how many, in how many parts, and of which types."""

from __future__ import annotations

from typing import Final

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_servicekit.chunk_rows import MARK

MAX_SCHEMA_BYTES: Final = 1024
"""More columns than that are in the result only; an event is small."""


def table_facts(result: JsonValue) -> JsonObject:
    """`row_count`, `partition_count` and `schema` of a result whose rows are parts; nothing of any other."""
    if not isinstance(result, dict):
        return {}
    rows, schema = result.get("rows"), result.get("schema")
    if not isinstance(rows, dict) or MARK not in rows or not isinstance(schema, list):
        return {}
    counts = {key: count for key in ("row_count", "partition_count") if isinstance(count := result.get(key), int)}
    return {**counts, **({"schema": schema} if len(encode(schema)) <= MAX_SCHEMA_BYTES else {})}
