"""Canonical bytes: the fast writer where it spells a value canonically, a careful one where it does not."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from json import JSONEncoder
from typing import Any

from noetl_core.canonical import native
from noetl_core.canonical.values import (
    MAX_DEPTH,
    MAX_SAFE_INTEGER,
    Refused,
    deeper,
    foreign,
    name_of,
    without_surrogates,
)

_FAST_ENCODER = JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


def sha256_hex(data: bytes) -> str:
    """The checksum that NoETL uses everywhere: SHA-256 as lowercase hex."""
    return hashlib.sha256(data).hexdigest()


def encode(value: object) -> bytes:
    """The canonical bytes of a JSON value; anything else is refused with the place where it stands."""
    try:
        if type(value) in (dict, list, tuple) and _suits_fast_encoder(value, 0, {}):
            try:
                return native.write(value)
            except TypeError:
                pass  # a lone surrogate, and only the careful writer can say where; or a key that is not quite text
        parts: list[str] = []
        write(value, parts, 0)
        return "".join(parts).encode()
    except Refused as refusal:
        raise refusal.located() from None


def suits(value: dict[str, Any] | list[Any]) -> bool:
    """Whether the fast writer spells a container canonically, but for lone surrogates, which it refuses."""
    return _suits_fast_encoder(value, 0, {})


def write(value: object, parts: list[str], depth: int) -> None:
    """Spell any JSON value canonically, piece by piece."""
    if value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, str):
        parts.append(_FAST_ENCODER.encode(without_surrogates(value)))
    elif isinstance(value, int):
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            raise Refused("an integer beyond 2^53-1")
        parts.append(int.__repr__(value))
    elif isinstance(value, float):
        parts.append(number_text(value))
    elif isinstance(value, Mapping):
        _write_object(value, parts, deeper(depth))
    elif isinstance(value, (list, tuple)):
        _write_array(value, parts, deeper(depth))
    elif isinstance(value, Refused):
        raise value
    else:
        raise foreign(value)


def number_text(number: float) -> str:
    """A double as ECMAScript spells it: Python's shortest digits, with the point and exponent its own way."""
    if not math.isfinite(number):
        raise Refused("NaN or an infinity")
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = float.__repr__(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    written = whole + fraction
    significant = written.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(written) - len(significant))
    digits = significant.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def _suits_fast_encoder(value: Any, depth: int, known: dict[int, int]) -> bool:
    """Whether the fast writer spells a container canonically; lone surrogates show when it does.

    Results of pipelines have the same objects in several places; those that an object has are `known`, with the
    depth at which they were looked through, and looked through once.
    """
    if depth == MAX_DEPTH:
        return False
    is_object = type(value) is dict
    if is_object:
        try:
            names = "".join(value)
        except TypeError:  # keys that are no text
            return False
        # Python orders by code point, RFC 8785 by UTF-16 unit: they agree up to the end of the first plane.
        if not names.isascii() and max(names) > "\uffff":
            return False
        value = value.values()
    for child in value:
        kind = type(child)
        if kind is str:
            continue
        if kind is int:
            if not -MAX_SAFE_INTEGER <= child <= MAX_SAFE_INTEGER:
                return False
        elif kind is dict or kind is list or kind is tuple:
            if known and known.get(id(child), -1) >= depth:
                continue
            if not _suits_fast_encoder(child, depth + 1, known):
                return False
            if is_object:
                known[id(child)] = depth
        elif kind is float:
            # Within these bounds Python and ECMAScript place the point alike, and without an exponent.
            if child.is_integer() or not 1e-4 <= abs(child) < 1e16:
                return False
        elif child is not None and kind is not bool and not isinstance(child, str):
            return False
    return True


def _write_object(value: Mapping[Any, object], parts: list[str], depth: int) -> None:
    separator = "{"
    for name in sorted(map(name_of, value), key=_utf16_units):
        parts.append(separator)
        parts.append(_FAST_ENCODER.encode(name))
        parts.append(":")
        try:
            write(value[name], parts, depth)
        except Refused as refusal:
            refusal.trail.append(name)
            raise
        separator = ","
    parts.append("}" if value else "{}")


def _write_array(value: list[object] | tuple[object, ...], parts: list[str], depth: int) -> None:
    separator = "["
    for index, child in enumerate(value):
        parts.append(separator)
        try:
            write(child, parts, depth)
        except Refused as refusal:
            refusal.trail.append(index)
            raise
        separator = ","
    parts.append("]" if value else "[]")


def _utf16_units(name: str) -> bytes:
    return name.encode("utf-16-be")
