"""Jinja2's filters as the language has them: some mean more, and none makes more than its budget pays for."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from functools import reduce, wraps
from typing import Any, NoReturn

from jinja2 import Undefined, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import UndefinedError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context

from noetl_core.canonical import JsonValue
from noetl_core.playbook.metering import TooMuch, add, printf, spend, text_size
from noetl_core.playbook.plain import plain

CHANCE = "by chance"
"""A name that no template can spell: a function that gives numbers from 0 to 1, where chance may decide."""
_MAX_INDENT = 16
_MAX_DECIMALS = 100
_ON_ONE_LINE = json.JSONEncoder(sort_keys=True, ensure_ascii=False)
_NO_INTEGER = (TypeError, ValueError, ArithmeticError, UndefinedError)


def join_text(items: Iterable[object], separator: str = "") -> str:
    """Text from pieces, in which null and undefined are empty."""
    pieces: list[str] = []
    for item in items:
        spend(text_size(item) + len(separator))
        pieces.append("" if item is None else str(item))
    return separator.join(pieces)


def _default(value: object, default_value: object = "", boolean: bool = False) -> object:
    """As Jinja2's, and null is no value either."""
    if value is None or isinstance(value, Undefined) or (boolean and not value):
        return default_value
    return value


def _int(value: Any, default: object = 0, base: int = 10) -> object:
    """As Jinja2's, but nothing makes it fail."""
    try:
        return int(value, base) if isinstance(value, str) else int(value)
    except _NO_INTEGER:
        pass
    try:
        return int(float(value))
    except _NO_INTEGER:
        return default


def _tojson(value: object, indent: int | None = None) -> str:
    """Plain JSON; keys in order, since what was stored has lost the order in which it was made."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise TooMuch(f"an indent of {indent} is not allowed")
    data = plain(value)
    spend(text_size(data))
    if indent is None:
        return json_line(data)
    return json.dumps(data, sort_keys=True, ensure_ascii=False, indent=indent)


def _line_writer() -> Callable[[JsonValue], str]:
    """Made once: the encoder makes one with every value. Plain data are a tree, so that no circle is looked for."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return _ON_ONE_LINE.encode
    is_sorted, skips_keys, allows_nan = True, False, True
    spell = make(
        *(None, _ON_ONE_LINE.default, json.encoder.encode_basestring, None, ": ", ", "),
        *(is_sorted, skips_keys, allows_nan),
    )

    def write(data: JsonValue) -> str:
        return "".join(spell(data, 0))

    return write


json_line = _line_writer()
"""What `tojson` writes for plain data."""


def _fromjson(value: object) -> object:
    if isinstance(value, Undefined):
        return None
    if not isinstance(value, str):
        raise TypeError(f"fromjson reads text, not {type(value).__name__}")
    return json.loads(value, parse_constant=_refuse_constant)


def _b64encode(value: object) -> str:
    text = str(value) if isinstance(value, str | Undefined) else _tojson(value)
    return base64.b64encode(text.encode()).decode("ascii")


def _b64decode(value: object) -> str:
    return base64.b64decode(str(value), validate=True).decode()


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return join_text(items, str(d))


@pass_environment
def _sum(
    environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> object:
    items = iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable)
    return reduce(add, items, start)


@pass_context
def _random(context: Context, value: Iterable[Any]) -> object:
    """One of some items, by a chance that comes from outside; there is none where a decision must be repeatable."""
    chance = context.parent.get(CHANCE)
    if not callable(chance):
        raise ValueError("random is not available in control expressions")
    items = list(value)
    return items[min(int(chance() * len(items)), len(items) - 1)] if items else context.environment.undefined()


def _format(value: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise TypeError("format takes positional or named values, not both")
    return printf(str(value), kwargs or args)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


# --- what a filter of Jinja2's will cost, before it runs ------------------------------------------------------


def _cost_of_center(value: object, width: int = 80) -> int:
    return text_size(value) + max(width, 0)


def _cost_of_indent(s: str, width: int | str = 4, *_: object, **__: object) -> int:
    indent = len(width) if isinstance(width, str) else max(width, 0)
    return len(s) + (len(s.splitlines()) + 1) * indent


def _cost_of_replace(s: object, old: object, new: object, *_: object, **__: object) -> int:
    text = str(s)
    return len(text) + text.count(str(old)) * text_size(new)


def _cost_of_wordwrap(s: str, width: int = 79, _: bool = True, wrapstring: str | None = None, **__: object) -> int:
    # Two lines in a row are together longer than the width, or they would be one.
    lines = len(s.splitlines()) + 2 * len(s) // max(width, 1)
    return len(s) + lines * len(wrapstring or "\n")


def _cost_of_urlize(value: object, *args: object, **kwargs: object) -> int:
    links = text_size(value) // 4 + 1
    return 8 * text_size(value) + links * sum(map(text_size, [*args, *kwargs.values()]))


def _cost_of_columns(value: object, count: int, fill_with: object = None) -> int:
    return count * (1 + text_size(fill_with))


def _cost_of_round(value: object, precision: int = 0, *_: object, **__: object) -> int:
    if abs(precision) > _MAX_DECIMALS:
        raise TooMuch(f"no number has {precision} decimals")
    return 1


def _cost_of_text(value: object, *_: object, **__: object) -> int:
    return text_size(value)


def _paying(original: Callable[..., Any], cost: Callable[..., int]) -> Callable[..., Any]:
    """The filter, paid for first; Jinja2 hands some of them the environment before the value."""
    own_arguments = 1 if hasattr(original, "jinja_pass_arg") else 0

    @wraps(original)
    def filter_value(*args: Any, **kwargs: Any) -> Any:
        spend(cost(*args[own_arguments:], **kwargs))
        return original(*args, **kwargs)

    return filter_value


_COSTS: dict[str, Callable[..., int]] = {
    "batch": _cost_of_columns,
    "center": _cost_of_center,
    "indent": _cost_of_indent,
    "pprint": _cost_of_text,
    "replace": _cost_of_replace,
    "round": _cost_of_round,
    "slice": _cost_of_columns,
    "string": _cost_of_text,
    "urlize": _cost_of_urlize,
    "wordwrap": _cost_of_wordwrap,
    "xmlattr": _cost_of_text,
}
_OWN: dict[str, Callable[..., Any]] = {
    "b64decode": _b64decode,
    "b64encode": _b64encode,
    "d": _default,
    "default": _default,
    "format": _format,
    "fromjson": _fromjson,
    "int": _int,
    "join": _join,
    "random": _random,
    "sum": _sum,
    "tojson": _tojson,
}

FILTERS: dict[str, Callable[..., Any]] = {
    **JINJA_FILTERS,
    **{name: _paying(JINJA_FILTERS[name], cost) for name, cost in _COSTS.items()},
    **_OWN,
}
