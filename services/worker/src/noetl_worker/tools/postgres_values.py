"""What the driver's own types of PostgreSQL are in a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import asyncpg
from noetl_core.canonical import JsonValue

from noetl_worker.tools.sql_values import json_value

_CHAR_OID = 18
"""The one-byte type of the system catalogs, which the driver takes for bytes."""


_TEXT_TYPES = ("interval", "point", "line", "lseg", "box", "path", "polygon", "circle")
"""Best told as PostgreSQL itself writes them, in `to_json` too."""


async def set_codecs(connection: Any) -> None:
    """For every new connection: json is native, and some types are text."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    for name in _TEXT_TYPES:
        await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


def converters(attributes: tuple[Any, ...]) -> tuple[Callable[[object], JsonValue], ...]:
    """For each column of a statement, how its values become JSON."""
    return tuple(_char if attribute.type.oid == _CHAR_OID else postgres_value for attribute in attributes)


def postgres_value(value: object) -> JsonValue:
    """As `json_value`, for what only this driver has."""
    if isinstance(value, asyncpg.Record):
        return {name: postgres_value(field) for name, field in value.items()}
    if isinstance(value, asyncpg.Range):
        return range_text(value)
    if isinstance(value, asyncpg.BitString):
        return str(value.as_string()).replace(" ", "")
    if isinstance(value, list | tuple):
        return [postgres_value(item) for item in value]
    return json_value(value)


def range_text(value: Any) -> str:
    """A range as PostgreSQL writes it."""
    if value.isempty:
        return "empty"
    lower, upper = (
        "" if bound is None else str(bound.isoformat() if isinstance(bound, date) else bound)
        for bound in (value.lower, value.upper)
    )
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"


def _char(value: object) -> JsonValue:
    return value.decode(errors="replace") if isinstance(value, bytes) else None
