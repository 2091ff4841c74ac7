"""Bound what one template may make: work, text and values are paid for from a budget that ends."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

MAX_WORK_PER_TEXT = 4
"""A template may build a few times as much as it may put out."""

_MAX_INTEGER_BITS = 16_384
_CALL_COST = 10
_PRINTF_NUMBER = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")


class TooMuch(Exception):
    """The template makes more than anybody could want from it."""


class Meter:
    """What one rendering may still do: all that a template does inside is paid for from it.

    Characters, list items and loop turns all count as one. Turns take longer than characters: they have a bound
    of their own, however much text there may be.
    """

    __slots__ = ("_known", "_sizes", "_token", "left", "turns_left")

    def __init__(self, budget: int, turns: int) -> None:
        self.left = budget
        self.turns_left = turns
        self._sizes: dict[int, int] = {}
        self._known: list[object] = []  # keeps what is measured alive, so that no other object gets its id

    def __enter__(self) -> Meter:
        self._token = _current.set(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _current.reset(self._token)

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooMuch("the template makes too much text, too many values or too many turns")

    def spend_turns(self, amount: int) -> None:
        self.turns_left -= amount
        self.spend(amount if self.turns_left >= 0 else self.left + 1)

    def built(self, value: object) -> None:
        """Pay for every part of a new value that stands in it more than once: written out, it is there twice."""
        self._size(value)

    def _size(self, value: object) -> int:
        if not isinstance(value, list | tuple | Mapping | str) or (isinstance(value, str) and len(value) < 32):
            return 1
        size = self._sizes.get(id(value))
        if size is not None:
            self.spend(size)
            return size
        if isinstance(value, str):
            size = len(value)
        else:
            children = value.values() if isinstance(value, Mapping) else value
            size = 1 + sum(self._size(child) for child in children)
        self._sizes[id(value)] = size
        self._known.append(value)
        return size


_current: ContextVar[Meter] = ContextVar("noetl_template_meter")


def spend(amount: int) -> None:
    """Pay for work from the budget of the rendering that goes on."""
    meter = _current.get()
    meter.left -= amount  # here and now: every value of every template comes along here
    if meter.left < 0:
        meter.spend(0)


def spend_turns(amount: int) -> None:
    """Pay for turns of a loop, which are bounded by themselves too."""
    _current.get().spend_turns(amount)


def spend_call() -> None:
    """A call costs more than a character: macros that call themselves end soon."""
    spend_turns(_CALL_COST)


def built(value: object) -> None:
    """See `Meter.built`."""
    _current.get().built(value)


def text_size(value: object) -> int:
    """About how long a value is as text, without making that text."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if type(value) is dict:
        size = 2
        for key, child in value.items():  # as below; most maps are of texts
            size += (len(key) if type(key) is str else text_size(key)) + 4
            size += len(child) if type(child) is str else text_size(child)
        return size
    if isinstance(value, Mapping):
        return 2 + sum(text_size(key) + text_size(child) + 4 for key, child in value.items())
    if isinstance(value, list | tuple):
        return 2 + sum(text_size(child) + 2 for child in value)
    return 24


def printf(template: str, arguments: object) -> str:
    """`%` formatting whose widths and repetitions are paid for first."""
    numbers = [number for found in _PRINTF_NUMBER.findall(template) for number in found if number]
    if "*" in numbers:
        raise TooMuch("a width of * is not allowed in a format")
    if any(len(number) > 6 for number in numbers):
        raise TooMuch("a format with so large a width is not allowed")
    longest = text_size(arguments)
    spend(len(template) + sum(map(int, numbers)) + template.count("%") * longest)
    return template % arguments


def repeat(left: Any, right: Any) -> object:
    """`*`, for numbers and for what can be repeated."""
    sequence, count = (left, right) if isinstance(left, str | list | tuple) else (right, left)
    if isinstance(sequence, str | list | tuple) and isinstance(count, int):
        spend(len(sequence) * max(count, 0))
        result = sequence * count
        built(result)
        return result
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return operator.mul(left, right)


def add(left: Any, right: Any) -> object:
    """`+`, for numbers and for what can be joined."""
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        spend(len(left) + len(right))
        result = operator.add(left, right)
        built(result)
        return result
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(max(left.bit_length(), right.bit_length()))
    return operator.add(left, right)


def power(left: Any, right: Any) -> object:
    """`**`, as far as the result is a number that one would write down."""
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        _check_bits(left.bit_length() * right)
    return operator.pow(left, right)


def remainder(left: Any, right: Any) -> object:
    """`%`, for numbers, and as the format operator of text."""
    return printf(left, right) if isinstance(left, str) else operator.mod(left, right)


BINARY_OPERATORS: dict[str, Callable[[Any, Any], object]] = {
    "+": add,
    "-": operator.sub,
    "*": repeat,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": power,
    "%": remainder,
}


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise TooMuch("the number has too many digits")
