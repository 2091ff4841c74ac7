"""JSON objects that came as canonical bytes keep them, so that nobody has to spell them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from noetl_core.canonical import native
from noetl_core.canonical.decoding import decode
from noetl_core.canonical.encoding import suits
from noetl_core.canonical.values import MAX_DEPTH, JsonValue

_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""Kinds of values that the fast writer spells canonically, or refuses."""


class SpeltObject(dict[str, JsonValue]):
    """An object with its canonical bytes; it cannot be changed, since they would no longer be its own."""

    __slots__ = ("spelt",)

    spelt: bytes

    def _unchangeable(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("an object that keeps its spelling cannot be changed; copy it with dict()")

    __setitem__ = __delitem__ = __ior__ = _unchangeable
    clear = pop = popitem = setdefault = update = _unchangeable

    def __reduce__(self) -> tuple[Callable[..., SpeltObject], tuple[dict[str, JsonValue], bytes]]:
        return _keeping, (dict(self), self.spelt)


def _keeping(value: dict[str, JsonValue], spelt: bytes) -> SpeltObject:
    # Not by a constructor of its own, which would take as long as the copy.
    kept = SpeltObject(value)
    kept.spelt = spelt
    return kept


def read_spelt(data: bytes) -> JsonValue:
    """As `decode`; an object that is spelt canonically keeps its bytes.

    That it is so is proved by spelling what was read: equal bytes mean that nothing was lost, doubled or rounded.
    """
    value = _proved(data)
    return decode(data) if value is None else _keeping(value, data)


def read_canonical(data: bytes) -> JsonValue:
    """As `decode`, sooner for objects that are spelt canonically, as those of the log are."""
    value = _proved(data)
    return decode(data) if value is None else value


def _proved(data: bytes) -> dict[str, JsonValue] | None:
    """The object, if spelling it gives its bytes; None where the strict reader has to say what is wrong, or takes what
    this one does not."""
    try:
        value = native.read(data)
        if type(value) is dict and _suits(value, data) and native.write(value) == data:
            return value
    except (ValueError, TypeError):
        pass
    return None


def _suits(value: dict[str, Any], data: bytes) -> bool:
    """Names that are ASCII are in the order that RFC 8785 wants, and the writer itself refuses large integers, so that
    only floats are left to look for."""
    children = value.values()
    if not data.isascii():
        return suits(value)
    return _PLAIN.issuperset(map(type, children)) or _has_no_float(children, 0) or suits(value)


def _has_no_float(children: Iterable[Any], depth: int) -> bool:
    for child in children:
        kind = type(child)
        if kind is dict or kind is list:
            inside = child.values() if kind is dict else child
            if depth == MAX_DEPTH - 1:
                return False
            if not _PLAIN.issuperset(map(type, inside)) and not _has_no_float(inside, depth + 1):
                return False
        elif kind is float:
            return False
    return True
