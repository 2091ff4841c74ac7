"""Values that nobody changes, made as quickly as those that somebody could.

Every event passes through a dozen of them. A frozen dataclass sets each field by a call that asks whether it may; here
only the type checker asks, and it does so before the program runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

__all__ = ["dataclass", "maker", "new_tuple", "replace"]

Value = TypeVar("Value")

if TYPE_CHECKING:
    from dataclasses import dataclass, replace

    def new_tuple(kind: type[Value], fields: tuple[Any, ...], /) -> Value:
        """A named tuple of all its fields in their order, for who makes thousands."""
        ...
else:
    new_tuple = tuple.__new__

    def dataclass(*, frozen: bool, **options: Any) -> Callable[[type], type]:
        """As `dataclasses.dataclass`, for frozen ones: equal values are the same key, and the rest is trust."""
        return dataclasses.dataclass(unsafe_hash=frozen, **options)

    def replace(value: Any, /, **changes: Any) -> Any:
        """As `dataclasses.replace`, by a function that is made once for each class."""
        kind = type(value)
        copy = _COPIES.get(kind)
        if copy is None:
            copy = _COPIES[kind] = _make_copy(kind)
        return copy(value, **changes)


def maker(kind: type[Value]) -> Callable[..., Value]:
    """A function that makes a dataclass from all its fields in their order, for who makes thousands.

    By names it takes three times as long, of which most is finding out which name is which.
    """
    if not _is_plain(kind):
        raise TypeError(f"{kind.__qualname__} does more than to set its fields")
    names = [field.name for field in _fields(kind)]
    return _function("make_value", kind, ", ".join(names), {name: name for name in names})


_fields: Final[Callable[[Any], tuple[dataclasses.Field[Any], ...]]] = dataclasses.fields
_COPIES: Final[dict[type, Callable[..., Any]]] = {}
_KEPT: Final = object()


def _make_copy(kind: type) -> Callable[..., Any]:
    """A function that takes changes by name and keeps what is not named; the fields are attributes of the class's own.

    What checks or computes as it is made is made in the usual way.
    """
    if not _is_plain(kind):
        return dataclasses.replace
    fields = _fields(kind)
    parameters = "".join(f", {field.name}=__kept" for field in fields)
    kept = {field.name: f"__old.{field.name} if {field.name} is __kept else {field.name}" for field in fields}
    return _function("copy", kind, f"__old, *{parameters}", kept)


def _is_plain(kind: type) -> bool:
    """Whether nothing but setting its fields happens when a value is made."""
    setting: object = kind.__setattr__
    is_quiet = setting is object.__setattr__ and not hasattr(kind, "__post_init__")
    return is_quiet and all(field.init for field in _fields(kind))


def _function(name: str, kind: type, parameters: str, values: Mapping[str, str]) -> Callable[..., Any]:
    """Sets each field of a new value to an expression. Names of its own begin as no field does."""
    lines = [f"def {name}({parameters}):", "    __new = __make(__kind)"]
    lines += [f"    __new.{field} = {value}" for field, value in values.items()]
    names: dict[str, Any] = {"__kept": _KEPT, "__make": object.__new__, "__kind": kind}
    exec("\n".join([*lines, "    return __new"]), names)  # noqa: S102 - made of the names of fields, as dataclasses does it
    made: Callable[..., Any] = names[name]
    return made
