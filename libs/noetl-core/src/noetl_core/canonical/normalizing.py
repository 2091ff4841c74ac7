"""Turning what Python programs return into JSON values, or refusing it before it has any effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from noetl_core.canonical.values import (
    MAX_SAFE_INTEGER,
    JsonObject,
    JsonValue,
    Refused,
    deeper,
    foreign,
    name_of,
    without_surrogates,
)
from noetl_core.errors import InvalidInput
from noetl_core.timestamps import format_time

_ANY_DAY = date(2000, 1, 2)


def normalize(value: object) -> JsonValue:
    """A copy of the value that `encode` accepts, or a refusal that names the place.

    Times become text, in UTC where their zone is known; numbers that a double cannot hold become their digits
    as text; tuples become lists. NaN, sets, bytes, objects and keys that are not text have no single reading.
    """
    try:
        return _normalize(value, 0)
    except Refused as refusal:
        raise refusal.located() from None


def _normalize(value: object, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(without_surrogates(value))
    if isinstance(value, Mapping):
        return _normalize_object(value, deeper(depth))
    if isinstance(value, (list, tuple)):
        return _normalize_array(value, deeper(depth))
    if isinstance(value, (int, float, Decimal)):
        return _normalize_number(value)
    return _time_text(value)


def _normalize_object(value: Mapping[Any, object], depth: int) -> JsonObject:
    result: JsonObject = {}
    for key, child in value.items():
        name = str.__str__(name_of(key))
        try:
            result[name] = _normalize(child, depth)
        except Refused as refusal:
            refusal.trail.append(name)
            raise
    return result


def _normalize_array(value: list[object] | tuple[object, ...], depth: int) -> list[JsonValue]:
    result: list[JsonValue] = []
    for index, child in enumerate(value):
        try:
            result.append(_normalize(child, depth))
        except Refused as refusal:
            refusal.trail.append(index)
            raise
    return result


def _normalize_number(value: int | float | Decimal) -> int | float | str:
    if isinstance(value, Decimal):
        return _normalize_decimal(value)
    if isinstance(value, int):
        return _integer(value)
    if not math.isfinite(value):
        raise Refused("NaN or an infinity")
    if value.is_integer() and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return int(value)  # spelled alike, and readers of the bytes get this; the fast writer takes no other
    return float(value)


def _normalize_decimal(value: Decimal) -> int | float | str:
    if not value.is_finite():
        raise Refused("NaN or an infinity")
    if value == value.to_integral_value():
        # One rule for integers of both types: a column of ids does not turn into doubles half way.
        return int(value) if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else str(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def _integer(value: int) -> int | str:
    if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return int(value)
    try:
        return int.__repr__(value)
    except ValueError:
        raise Refused("an integer with too many digits") from None


def _time_text(value: object) -> str:
    if isinstance(value, (datetime, time)):
        if value.utcoffset() is None:  # nobody knows its zone, so none is claimed
            return value.replace(tzinfo=None).isoformat(timespec="microseconds")
        if isinstance(value, time):
            value = datetime.combine(_ANY_DAY, value).astimezone(UTC)
            return f"{value.time().isoformat(timespec='microseconds')}Z"
        try:
            return format_time(value)
        except InvalidInput:
            raise Refused("a time that UTC cannot express") from None
    if isinstance(value, date):
        return value.isoformat()
    raise foreign(value)
