"""Which Arrow type a column of Python values has, if one exists that gives every value back as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from noetl_core.canonical import MAX_SAFE_INTEGER
from noetl_core.errors import ColumnRefused

MAX_DECIMAL_DIGITS = 76
MAX_DEPTH = 32
"""Arrow's own readers stop at 64."""
_SIMPLE: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
}
_OF_JSON: dict[type, pa.DataType] = {bool: pa.bool_(), str: pa.string()}
_NULL = type(None)


class ColumnTypes:
    """Types of typed values: exactly as they are, whatever they are."""

    def of(self, name: str, values: Sequence[Any], depth: int = 0) -> pa.DataType:
        """The type of a column; raises `ColumnRefused` when no type holds all its values exactly."""
        kinds = set(map(type, values))
        kinds.discard(_NULL)
        if not kinds:
            return pa.null()
        if len(kinds) > 1:
            return self._of_several(name, kinds, values, depth)
        (kind,) = kinds
        return self._of_kind(name, kind, values, depth)

    def _of_kind(self, name: str, kind: type, values: Sequence[Any], depth: int) -> pa.DataType:
        simple = self._simple(kind)
        if simple is not None:
            return simple
        present = [value for value in values if value is not None]
        if issubclass(kind, list | tuple):
            items = [item for value in present for item in value]
            return pa.list_(self.of(f"{name}[]", items, _deeper(name, depth)))
        if issubclass(kind, Mapping):
            return self._struct(name, present, _deeper(name, depth))
        return self._special(name, kind, present)

    def _of_several(self, name: str, kinds: set[type], values: Sequence[Any], depth: int) -> pa.DataType:
        for common in (list, dict):
            if all(issubclass(kind, (list, tuple) if common is list else Mapping) for kind in kinds):
                return self._of_kind(name, common, values, depth)
        raise ColumnRefused(name, f"values of different types: {', '.join(sorted(kind.__name__ for kind in kinds))}")

    def _simple(self, kind: type) -> pa.DataType | None:
        return _SIMPLE.get(kind)

    def _special(self, name: str, kind: type, present: Sequence[Any]) -> pa.DataType:
        if kind is datetime:
            return _timestamp(name, present)
        if kind is Decimal:
            return _decimal(name, present)
        raise ColumnRefused(name, f"a value of type {kind.__name__}")

    def _struct(self, name: str, values: Sequence[Mapping[str, Any]], depth: int) -> pa.DataType:
        fields = list(values[0])
        if not fields:
            raise ColumnRefused(name, "maps without keys")
        for value in values:
            if value.keys() != values[0].keys():
                raise ColumnRefused(name, "maps with different keys")
        return pa.struct(
            [(field, self.of(f"{name}.{field}", [value[field] for value in values], depth)) for field in fields]
        )


class JsonColumnTypes(ColumnTypes):
    """Types of JSON values: a number is a number, and what canonical JSON refuses is refused."""

    def _simple(self, kind: type) -> pa.DataType | None:
        return _OF_JSON.get(kind)

    def _of_several(self, name: str, kinds: set[type], values: Sequence[Any], depth: int) -> pa.DataType:
        if kinds == {int, float}:
            _check_numbers(name, values)
            return pa.float64()
        return super()._of_several(name, kinds, values, depth)

    def _special(self, name: str, kind: type, present: Sequence[Any]) -> pa.DataType:
        if kind in (int, float):
            _check_numbers(name, present)
            return pa.int64() if kind is int else pa.float64()
        raise ColumnRefused(name, f"a value of type {kind.__name__}")


def _check_numbers(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if type(value) is int:
            if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
                raise ColumnRefused(name, "an integer beyond 2^53-1")
        elif value is not None and not math.isfinite(value):
            raise ColumnRefused(name, "NaN or an infinity")


def _deeper(name: str, depth: int) -> int:
    if depth == MAX_DEPTH:
        raise ColumnRefused(name, f"nested more than {MAX_DEPTH} times")
    return depth + 1


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
