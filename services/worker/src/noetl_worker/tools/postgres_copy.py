"""Rows in the text form of PostgreSQL's COPY: whatever a value is in Python, the column's type reads it. Pure."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal

import asyncpg

from noetl_worker.tools.postgres_values import range_text
from noetl_worker.tools.sql_values import json_value

_NULL = b"\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the target."""

    name: str
    type_name: str
    is_array: bool = False


def copy_lines(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Iterable[bytes]:
    """One line for each row."""
    write = [_writer(column) for column in columns]
    for row in rows:
        fields = (
            _NULL if value is None else text(value).translate(_ESCAPES).encode()
            for text, value in zip(write, row, strict=True)
        )
        yield b"\t".join(fields) + b"\n"


def _writer(column: Column) -> Callable[[object], str]:
    if column.type_name in ("json", "jsonb"):
        return _json_text
    if column.type_name == "bytea":
        return _bytes_text
    return _array_text if column.is_array else _text


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return str(json_value(value))
        case int() | float() | Decimal():
            return str(value)
        case date() | time():
            return value.isoformat()
        case bytes():
            return "\\x" + value.hex()
        case asyncpg.Range():
            return range_text(value)
        case asyncpg.BitString():
            return str(value.as_string()).replace(" ", "")
        case asyncpg.Record():
            return _record_text(list(value.values()))
        case ipaddress.IPv4Address() | ipaddress.IPv6Address():
            return str(value)
        case Mapping() | list():
            return json.dumps(json_value(value), ensure_ascii=False)
        case tuple():  # a record without names
            return _record_text(list(value))
        case _:
            return str(value)


def _json_text(value: object) -> str:
    """Text that is a JSON map or list already is taken for one; other text is a JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            json.loads(value)
        except ValueError:
            pass
        else:
            return value
    return json.dumps(json_value(value), ensure_ascii=False)


def _bytes_text(value: object) -> str:
    """Bytes, or their base64, which is how results carry them; other text is its own bytes."""
    if not isinstance(value, str) or value.startswith("\\x"):
        return _text(value)
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except binascii.Error:
        return "\\x" + value.encode().hex()


def _array_text(value: object) -> str:
    if isinstance(value, str):
        return value
    items = value if isinstance(value, list | tuple) else [value]
    return "{" + ",".join(_array_item(item) for item in items) + "}"


def _array_item(item: object) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return _array_text(item)
    return _quoted(_text(item))


def _record_text(values: list[object]) -> str:
    return "(" + ",".join("" if value is None else _quoted(_text(value)) for value in values) + ")"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
