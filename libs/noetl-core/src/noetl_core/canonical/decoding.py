"""Reading JSON bytes strictly: nothing that two readers could understand differently comes in."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from json import JSONDecodeError, JSONDecoder
from typing import NoReturn, TypeVar

from noetl_core.canonical.encoding import encode, number_text
from noetl_core.canonical.values import MAX_SAFE_INTEGER, JsonObject, JsonValue, Refused
from noetl_core.errors import NotCanonical

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def decode(data: bytes | memoryview) -> JsonValue:
    """The value of JSON bytes, canonical or not, that `encode` would spell without loss.

    Refused are duplicate keys, NaN and infinities, digits that a double would lose, lone surrogates, and
    whatever is not JSON in UTF-8.
    """
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as exc:
        raise NotCanonical("invalid UTF-8", path=f"byte {exc.start}") from exc
    try:
        value = _decode(text)
    except JSONDecodeError as exc:
        raise NotCanonical(f"no JSON ({exc.msg})", path=f"line {exc.lineno} column {exc.colno}") from exc
    except RecursionError:
        raise NotCanonical("nesting too deep to read") from None
    except Refused as refusal:
        with suppress(JSONDecodeError):  # behind what is refused it may be no JSON either
            encode(_LOCATING_DECODER.decode(text))  # refuses the same, and knows the path
        raise refusal.located() from None
    if "\\ud" in text or "\\uD" in text:  # the only spelling by which a lone surrogate can have come in
        encode(value)
    return value


def _decode(text: str) -> JsonValue:
    """As the decoder does it, less its search for white space around the value, of which canonical bytes have none."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:  # no value at the very beginning
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def _object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Refused("an object with a duplicate key")
    return value


def _integer(text: str) -> int | float:
    if len(text) < 16:
        return int(text)
    number = float(text)
    if abs(number) <= MAX_SAFE_INTEGER:
        return int(text)
    # Large doubles are spelled as plain digits and must come back; other long digits would not survive.
    if number_text(number) != text:
        raise Refused("an integer beyond 2^53-1")
    return number


def _fraction(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Refused("a number beyond the range of a double")
    return number


def _constant(_text: str) -> NoReturn:
    raise Refused("NaN or an infinity")


def _refusal_in_place(hook: Callable[[_Argument], _Result]) -> Callable[[_Argument], _Result | Refused]:
    """Let a refusal stand where the value would, so that the writer meets it there."""

    def run(argument: _Argument) -> _Result | Refused:
        try:
            return hook(argument)
        except Refused as refusal:
            return refusal

    return run


_DECODER = JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant)
_scan: Callable[[str, int], tuple[JsonValue, int]] = _DECODER.scan_once  # type: ignore[attr-defined]  # not in the stubs
_LOCATING_DECODER = JSONDecoder(
    object_pairs_hook=_refusal_in_place(_object),
    parse_int=_refusal_in_place(_integer),
    parse_float=_refusal_in_place(_fraction),
    parse_constant=_refusal_in_place(_constant),
)
