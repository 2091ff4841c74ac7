"""JSON objects that came as canonical bytes keep them, so that nobody has to spell them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from noetl_core.canonical import native
from noetl_core.canonical.decoding import decode
from noetl_core.canonical.encoding import suits
from noetl_core.canonical.values import JsonValue


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
    try:
        value = native.read(data)
        if type(value) is dict and suits(value) and native.write(value) == data:
            return _keeping(value, data)
    except (ValueError, TypeError):
        pass  # the strict reader says what is wrong, or takes what this one does not
    return decode(data)
