"""Columns of a table as JSON values: numbers as canonical JSON has them, foreign types as SQL tools tell them."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from noetl_core.canonical import MAX_SAFE_INTEGER, JsonValue

Convert: TypeAlias = Callable[[Any], JsonValue]


def conversion(kind: pa.DataType, *, is_json: bool) -> Convert | None:
    """What turns a value of a column into JSON; None if each is JSON already.

    `is_json`: whoever wrote the column saw to it that integers are safe and numbers finite.
    """
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_null(kind):
        return None
    if pa.types.is_integer(kind):
        return None if is_json or kind.bit_width <= 32 else _integer
    if pa.types.is_float64(kind):
        return _number if is_json else _any_number
    if pa.types.is_struct(kind):
        return _map(kind, is_json=is_json)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(conversion(kind.value_type, is_json=is_json))
    return json_value


def json_value(value: object) -> JsonValue:
    """Decimals become floats, times ISO text, bytes base64; what a double cannot hold is text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    for kind, convert in _CONVERSIONS.items():
        if isinstance(value, kind):
            return convert(value)
    return str(value)


def _integer(value: int | None) -> JsonValue:
    if value is None or -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return value
    return str(value)


def _number(value: float | None) -> JsonValue:
    """Canonical JSON knows no difference between 1.0 and 1, and a reader of JSON gets the latter."""
    if value is not None and value.is_integer() and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return int(value)
    return value


def _any_number(value: float | None) -> JsonValue:
    if value is None or math.isfinite(value):
        return _number(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _list(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: None if values is None else [convert(value) for value in values]


def _map(kind: pa.StructType, *, is_json: bool) -> Convert | None:
    named = [(field.name, conversion(field.type, is_json=is_json)) for field in kind]
    below = [(name, convert) for name, convert in named if convert is not None]
    if not below:
        return None

    def convert_map(value: dict[str, Any] | None) -> JsonValue:
        if value is not None:
            for name, convert in below:
                value[name] = convert(value[name])
        return value

    return convert_map


_CONVERSIONS: dict[type, Convert] = {
    int: _integer,
    float: _any_number,
    Decimal: lambda value: _any_number(float(value)),
    datetime: lambda value: value.isoformat(),
    date: lambda value: value.isoformat(),
    time: lambda value: value.isoformat(),
    timedelta: str,
    bytes: lambda value: base64.b64encode(value).decode(),
}
