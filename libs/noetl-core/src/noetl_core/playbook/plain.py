"""Turn what a template gives into plain JSON, and decide whether it holds."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Set, ValuesView

from jinja2 import Undefined

from noetl_core.canonical import JsonValue
from noetl_core.playbook.metering import spend_turns
from noetl_core.playbook.views import View, passed_of

_FALSE_WORDS = frozenset({"", "false", "0", "no", "none", "null", "off", "[]", "{}"})


def plain(value: object) -> JsonValue:
    """The JSON value of anything that is data: undefined is null, whatever can be iterated is a list."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if type(value) is dict:  # mostly, and known without asking what else it may be
        return {_key(key): plain(child) for key, child in value.items()}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number that JSON can carry")
        return value
    if isinstance(value, Undefined):
        return None
    if isinstance(value, View):
        return plain(passed_of(value))
    if isinstance(value, Mapping):
        return {_key(key): plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    if isinstance(value, Iterator | range | Set | KeysView | ValuesView | ItemsView):
        return [plain(child) for child in _paid(value)]
    raise TypeError(f"a {type(value).__name__} is not a value")


def holds(value: JsonValue) -> bool:
    """Whether a condition with this value is met."""
    if isinstance(value, str):
        return value.strip().lower() not in _FALSE_WORDS
    return bool(value)


def _paid(
    items: Iterator[object] | range | Set[object] | ValuesView[object],
) -> Iterator[object]:
    for item in items:
        spend_turns(1)
        yield item


def _key(key: object) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bool) or key is None:
        return {True: "true", False: "false", None: "null"}[key]
    if isinstance(key, int | float):
        return str(key)
    raise TypeError(f"a {type(key).__name__} cannot be a key")
