"""The Jinja2 environment of the language: keys before methods, undefined that chains, nothing that escapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from string import Formatter
from typing import Any, TypeGuard

from jinja2 import ChainableUndefined, Undefined, pass_context
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from noetl_core.playbook.filters import FILTERS, join_text
from noetl_core.playbook.metering import BINARY_OPERATORS, TooMuch, built, spend, spend_call, text_size
from noetl_core.playbook.views import Key, View, look_into

MAX_RANGE = 100_000
_MAX_FIELD_WIDTH = 10_000

_MAP_METHODS = frozenset({"get", "items", "keys", "values"})
_LIST_METHODS = frozenset({"count", "index"})
_TEXT_METHODS = frozenset(
    {
        *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii"),
        *("isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle"),
        *("isupper", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title"),
        "upper",
    }
)
_PAYING_METHODS = frozenset({"center", "format", "join", "ljust", "replace", "rjust", "zfill"})
_METHODS = _MAP_METHODS | _LIST_METHODS | _TEXT_METHODS | _PAYING_METHODS
_OWN_OBJECTS = (LoopContext, Macro, Cycler, Joiner, Namespace)


class Missing(ChainableUndefined):
    """What is not there: falsy, empty, unequal to everything and never before or after anything."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def _is_ordered(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _is_ordered  # type: ignore[assignment]  # Jinja2's own always raise
    __hash__ = Undefined.__hash__


class Sandbox(ImmutableSandboxedEnvironment):
    """Evaluates templates of playbooks; every value they reach is data, and every result is paid for."""

    intercepted_binops = frozenset(BINARY_OPERATORS)

    def __init__(self) -> None:
        super().__init__(undefined=Missing, finalize=_finalize, optimized=False, cache_size=0)
        self.filters = dict(FILTERS)
        self.globals = {
            "range": _range,
            "dict": _dict,
            "cycler": Cycler,
            "joiner": Joiner,
            "namespace": Namespace,
        }

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        return BINARY_OPERATORS[operator](left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        spend_call()
        return super().call(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = self._data_below(obj, attribute)
        return self._method(obj, attribute) if isinstance(found, Missing) and found is not obj else found

    def getitem(self, obj: Any, argument: Any) -> Any:
        if _is_key(argument):
            if isinstance(obj, str) and isinstance(argument, int):
                return obj[argument : argument + 1 or None] or self.undefined(obj=obj, name=str(argument))
            return self._data_below(obj, argument)
        if isinstance(argument, Undefined):
            return self.undefined(obj=obj, name="undefined")
        raise TypeError(f"a {type(argument).__name__} cannot be a key")

    def _data_below(self, obj: Any, key: Key) -> Any:
        if isinstance(obj, Undefined):
            return obj
        if isinstance(obj, tuple) and key in getattr(obj, "_fields", ()):
            return getattr(obj, str(key))  # a group of `groupby`
        try:
            return look_into(obj, key)
        except KeyError:
            return self.undefined(obj=obj, name=str(key))

    def _method(self, obj: Any, name: str) -> Any:
        """The methods that data may have; nothing else of Python can be reached."""
        if isinstance(obj, View) and name in _METHODS:
            return partial(_get, obj) if name == "get" else self._method(obj.whole(), name)
        if isinstance(obj, str):
            if name == "format":
                return partial(_FieldFormatter(self).format, obj)
            if name in _PAYING_TEXT_METHODS:
                return partial(_PAYING_TEXT_METHODS[name], obj)
            allowed = _TEXT_METHODS
        elif isinstance(obj, Mapping):
            allowed = _MAP_METHODS
        elif isinstance(obj, list | tuple):
            allowed = _LIST_METHODS
        elif isinstance(obj, _OWN_OBJECTS):
            return super().getattr(obj, name)
        else:
            allowed = frozenset()
        return getattr(obj, name) if name in allowed else self.undefined(obj=obj, name=name)


class _FieldFormatter(Formatter):
    """`str.format` that looks into data as templates do, and pays for the width of its fields."""

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        first, _, rest = field_name.partition(".")
        if rest or "[" in field_name:
            raise ValueError("a format field may only be a name or a number")
        return self.get_value(int(first) if first.isdigit() else first, args, kwargs), first

    def format_field(self, value: Any, format_spec: str) -> str:
        numbers = [int(number) for number in _digit_runs(format_spec)]
        if any(number > _MAX_FIELD_WIDTH for number in numbers):
            raise TooMuch("a format with so large a width is not allowed")
        spend(sum(numbers) + text_size(value))
        return str(super().format_field(value, format_spec))


def _digit_runs(spec: str) -> Iterable[str]:
    return "".join(character if character.isdigit() else " " for character in spec).split()


def _is_key(argument: object) -> TypeGuard[Key]:
    return isinstance(argument, str) or (isinstance(argument, int) and not isinstance(argument, bool))


@pass_context  # so that Jinja2 evaluates nothing while it compiles
def _finalize(context: Context, value: object) -> object:
    """In text null and undefined are empty; everything else is paid for by its length."""
    if value is None:
        return ""
    spend(len(value) if type(value) is str else text_size(value))
    return value


def _get(view: View, key: str, default: object = None) -> object:
    try:
        return view.lookup(key)
    except KeyError:
        return default


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TooMuch(f"a range may have at most {MAX_RANGE} numbers")
    spend(len(numbers))
    return numbers


def _dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    made: dict[str, Any] = dict(*args, **kwargs)
    built(made)
    return made


def _padded(method: Callable[..., str]) -> Callable[..., str]:
    def pad(text: str, width: int, *fill: str) -> str:
        spend(max(width, len(text)))
        return method(text, width, *fill)

    return pad


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    spend(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def _joined(separator: str, items: Iterable[object]) -> str:
    return join_text(items, separator)


_PAYING_TEXT_METHODS: dict[str, Callable[..., str]] = {
    "center": _padded(str.center),
    "ljust": _padded(str.ljust),
    "rjust": _padded(str.rjust),
    "zfill": _padded(str.zfill),
    "replace": _replaced,
    "join": _joined,
}
