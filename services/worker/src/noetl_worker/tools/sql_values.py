"""Values of databases as JSON: what a row is in a result, whichever driver it came from."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from noetl_core.canonical import MAX_SAFE_INTEGER, JsonValue


def json_value(value: object) -> JsonValue:
    """Decimals become floats, times ISO text, bytes base64; what a double cannot hold is text."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    convert = _CONVERSIONS.get(type(value))
    if convert is not None:
        return convert(value)
    if isinstance(value, tuple):
        return [json_value(item) for item in value]
    return str(value)


def approximate_bytes(value: JsonValue) -> int:
    """About as many bytes as the JSON of a value has; quick, since it is asked for every row."""
    if isinstance(value, str):
        return len(value) + 3
    if isinstance(value, dict):
        return 2 + sum(len(name) + 4 + approximate_bytes(child) for name, child in value.items())
    if isinstance(value, list):
        return 2 + sum(1 + approximate_bytes(child) for child in value)
    return 8


def _number(value: float) -> float | str:
    """Where there is no number, what PostgreSQL's own `to_json` writes."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


_CONVERSIONS: dict[type, Callable[[Any], JsonValue]] = {
    int: lambda value: value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else str(value),
    float: _number,
    Decimal: lambda value: _number(float(value)),
    datetime: lambda value: value.isoformat(),
    date: lambda value: value.isoformat(),
    time: lambda value: value.isoformat(),
    timedelta: str,
    UUID: str,
    bytes: lambda value: base64.b64encode(value).decode(),
    bytearray: lambda value: base64.b64encode(value).decode(),
    memoryview: lambda value: base64.b64encode(value).decode(),
    list: lambda value: [json_value(item) for item in value],
    dict: lambda value: {str(name): json_value(item) for name, item in value.items()},
}
