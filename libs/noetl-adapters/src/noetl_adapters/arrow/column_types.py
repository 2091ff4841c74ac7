"""Which Arrow type a column of Python values has, if one exists that gives every value back as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from noetl_core.errors import ColumnRefused

MAX_DECIMAL_DIGITS = 76
_SIMPLE: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
}


def column_type(name: str, values: Sequence[Any]) -> pa.DataType:
    """The type of a column; raises `ColumnRefused` when no type holds all its values exactly."""
    kinds = {_kind(value) for value in values if value is not None}
    if not kinds:
        return pa.null()
    if len(kinds) > 1:
        raise ColumnRefused(name, f"values of different types: {', '.join(sorted(kind.__name__ for kind in kinds))}")
    (kind,) = kinds
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    present = [value for value in values if value is not None]
    if kind is list:
        return pa.list_(column_type(f"{name}[]", [item for value in present for item in value]))
    if kind is dict:
        return _struct(name, present)
    if kind is datetime:
        return _timestamp(name, present)
    if kind is Decimal:
        return _decimal(name, present)
    raise ColumnRefused(name, f"a value of type {kind.__name__}")


def _kind(value: object) -> type:
    if isinstance(value, Mapping):
        return dict
    if isinstance(value, list | tuple):
        return list
    return type(value)  # exactly: a bool is no int here, and a datetime is no date


def _struct(name: str, values: Sequence[Mapping[str, Any]]) -> pa.DataType:
    fields = list(values[0])
    if not fields:
        raise ColumnRefused(name, "maps without keys")
    for value in values:
        if value.keys() != values[0].keys():
            raise ColumnRefused(name, "maps with different keys")
    return pa.struct([(field, column_type(f"{name}.{field}", [value[field] for value in values])) for field in fields])


def _timestamp(name: str, values: Sequence[datetime]) -> pa.DataType:
    zones = {str(value.tzinfo) if value.tzinfo is not None else None for value in values}
    if len(zones) > 1:
        raise ColumnRefused(name, "times of different zones")
    if any(value.fold for value in values):
        raise ColumnRefused(name, "a time that its zone has twice")
    return pa.timestamp("us", tz=zones.pop())


def _decimal(name: str, values: Sequence[Decimal]) -> pa.DataType:
    parts = [value.as_tuple() for value in values]
    exponents = {part.exponent for part in parts}
    if len(exponents) > 1 or not all(isinstance(exponent, int) for exponent in exponents):
        raise ColumnRefused(name, "decimals with different numbers of places")
    exponent = exponents.pop()
    scale = -exponent if isinstance(exponent, int) else 0
    precision = max(1, scale, *(len(part.digits) for part in parts))
    if scale < 0 or precision > MAX_DECIMAL_DIGITS:
        raise ColumnRefused(name, f"decimals of {precision} digits")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
