"""Values that nobody changes, made as quickly as those that somebody could.

Every event passes through a dozen of them. A frozen dataclass sets each field by a call that asks whether it may; here
only the type checker asks, and it does so before the program runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

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


_COPIES: Final[dict[type, Callable[..., Any]]] = {}
_KEPT: Final = object()


def _make_copy(kind: type) -> Callable[..., Any]:
    """A function that takes changes by name and keeps what is not named; the fields are attributes of the class's own.

    What checks or computes as it is made is made in the usual way.
    """
    fields = dataclasses.fields(kind)
    setting: object = kind.__setattr__
    is_plain = setting is object.__setattr__ and not hasattr(kind, "__post_init__")
    if not is_plain or not all(field.init for field in fields):
        return dataclasses.replace
    parameters = "".join(f", {field.name}=kept" for field in fields)
    lines = [f"def copy(old, *{parameters}):", "    new = make(kind)"]
    lines += [f"    new.{name} = old.{name} if {name} is kept else {name}" for name in (f.name for f in fields)]
    names: dict[str, Any] = {"kept": _KEPT, "make": object.__new__, "kind": kind}
    exec("\n".join([*lines, "    return new"]), names)  # noqa: S102 - made of the names of fields, as dataclasses does it
    made: Callable[..., Any] = names["copy"]
    return made
