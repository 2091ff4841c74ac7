"""Strict shapes of documents: exactly these fields, of exactly these types; every problem is told, not the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from noetl_core.errors import InvalidInput
from noetl_core.surfaces.shapes import Surface
from noetl_core.timestamps import format_time, parse_time

Spec = Callable[[Any, str], Iterator[str]]
"""Tells what is wrong with a value at a place."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHOWN: Final = 200
"""Characters of a value that is not what it should be."""
_DIGITS: Final = re.compile(r"[1-9][0-9]{0,18}")
"""Ids have 63 bits; thousands of digits are nothing that Python makes a number of."""


def text(value: Any, at: str) -> Iterator[str]:
    """Any text."""
    if type(value) is not str:
        yield f"{at} is {_kind(value)}, not text"


def count(value: Any, at: str) -> Iterator[str]:
    """A JSON integer that is not negative; neither a text of digits nor a truth value is one."""
    if type(value) is not int:
        yield f"{at} is {_kind(value)}, not an integer"
    elif value < 0:
        yield f"{at} is {value}, below 0"


def integer(value: Any, at: str) -> Iterator[str]:
    """Any JSON integer."""
    if type(value) is not int:
        yield f"{at} is {_kind(value)}, not an integer"


def boolean(value: Any, at: str) -> Iterator[str]:
    """True or false."""
    if type(value) is not bool:
        yield f"{at} is {_kind(value)}, not true or false"


def sha256(value: Any, at: str) -> Iterator[str]:
    """64 lowercase hexadecimal digits."""
    if type(value) is not str or _SHA256.fullmatch(value) is None:
        yield f"{at} is not a SHA-256 in lowercase hex"


def told_sha256(value: Any, at: str) -> Iterator[str]:
    """The same, or empty text where nobody knows it."""
    if value != "":
        yield from sha256(value, at)


def digits(value: Any, at: str) -> Iterator[str]:
    """An id: its digits as text."""
    if type(value) is not str or _DIGITS.fullmatch(value) is None:
        yield f"{at} is not an id, which is text of digits"


def time(value: Any, at: str) -> Iterator[str]:
    """A point in time in the one form that documents have."""
    try:
        if type(value) is not str or format_time(parse_time(value)) != value:
            yield f"{at} is not a time in UTC with microseconds"
    except InvalidInput:
        yield f"{at} is not a time in UTC with microseconds"


def anything(value: Any, at: str) -> Iterator[str]:
    """Whatever it is, somebody else looks at it."""
    yield from ()


def only(*values: Any) -> Spec:
    """One of some values, type included."""

    def check(value: Any, at: str) -> Iterator[str]:
        if not any(type(value) is type(one) and value == one for one in values):
            yield f"{at} is {_shown(value)}, not {' or '.join(map(repr, values))}"

    return check


def count_to(maximum: int) -> Spec:
    """A count that is not above a number."""

    def check(value: Any, at: str) -> Iterator[str]:
        yield from count(value, at)
        if type(value) is int and value > maximum:
            yield f"{at} is {value}, above {maximum}"

    return check


def nothing_or(spec: Spec) -> Spec:
    """Null, or such a thing."""

    def check(value: Any, at: str) -> Iterator[str]:
        if value is not None:
            yield from spec(value, at)

    return check


def fields(**specs: Spec) -> Spec:
    """An object with all of these fields and no others."""

    def check(value: Any, at: str) -> Iterator[str]:
        if type(value) is not dict:
            yield f"{at} is {_kind(value)}, not an object"
            return
        for name in sorted(value.keys() - specs.keys()):
            yield f"{at}.{name} is unknown"
        for name, spec in specs.items():
            if name in value:
                yield from spec(value[name], f"{at}.{name}")
            else:
                yield f"{at}.{name} is missing"

    return check


def having(name: str, spec: Spec) -> Spec:
    """An object with such a field, whatever else it has."""

    def check(value: Any, at: str) -> Iterator[str]:
        if type(value) is not dict:
            yield f"{at} is {_kind(value)}, not an object"
        else:
            yield from spec(value.get(name), f"{at}.{name}")

    return check


def listing(spec: Spec) -> Spec:
    """A list of such things."""

    def check(value: Any, at: str) -> Iterator[str]:
        if type(value) is not list:
            yield f"{at} is {_kind(value)}, not a list"
            return
        for place, one in enumerate(value):
            yield from spec(one, f"{at}[{place}]")

    return check


def by_surface(spec: Spec) -> Spec:
    """An object with one such thing for each of the six surfaces."""
    return fields(**{str(surface): spec for surface in Surface})


def one_object(value: Any, at: str) -> Iterator[str]:
    """Any object."""
    if type(value) is not dict:
        yield f"{at} is {_kind(value)}, not an object"


def problems(document: Any, spec: Spec, name: str) -> list[str]:
    """All that is wrong with a document."""
    told: Iterable[str] = spec(document, name)
    return list(told)


def _shown(value: Any) -> str:
    """The value itself if it is short; what is nested may be so deep that nobody can spell it."""
    if isinstance(value, dict | list):
        return _kind(value)
    told = repr(value)
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
