"""What `in` and `max_in_flight` of a loop may be, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from noetl_core.canonical import JsonValue, decode
from noetl_core.errors import InvalidInput, NoetlError

MAX_IN_FLIGHT: Final = 10_000
MAX_ITEMS: Final = 10_000_000
"""What has not begun is arithmetic; but whoever runs an item reads the collection that it stands in."""


class LoopInvalid(InvalidInput):
    """A loop that cannot run with what its templates gave; a failure of its step."""


class InvalidCollection(LoopInvalid):
    """What `in` gave is nothing to loop over."""

    code = "loop.invalid_collection"


class InvalidMaxInFlight(LoopInvalid):
    """What `max_in_flight` gave is no number of items."""

    code = "loop.invalid_max_in_flight"


def items_in(value: JsonValue) -> JsonValue:
    """§7.1: null is empty, a map or text is one item, JSON text is parsed; what is no collection stays what it is."""
    if isinstance(value, str):
        value = _parsed(value)
    if value is None:
        return []
    if isinstance(value, str | Mapping):
        return [value]
    return value


def collection_of(value: JsonValue) -> list[JsonValue]:
    """The items of a loop; raises `InvalidCollection`."""
    items = items_in(value)
    if not isinstance(items, list | tuple):
        shown = str(items).lower() if isinstance(items, bool) else items
        raise InvalidCollection(f"'in' of a loop gave {shown}, which is no collection")
    return list(items)[: _checked(len(items))]


def stored_size(kind: str, count: int | None) -> int:
    """How many items a stored collection has; raises `InvalidCollection`."""
    if kind != "list" or count is None:
        raise InvalidCollection(f"'in' of a loop gave a {kind}, which is no collection")
    return _checked(count)


def _checked(count: int) -> int:
    if count > MAX_ITEMS:
        raise InvalidCollection(f"a loop has at most {MAX_ITEMS} items, not {count}")
    return count


def width_of(value: JsonValue) -> int:
    """How many items may run at once; text of digits is a number too."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_IN_FLIGHT:
        message = f"'max_in_flight' of a loop is a whole number from 1 to {MAX_IN_FLIGHT}, not {value!r}"
        raise InvalidMaxInFlight(message[:500])
    return number


def _parsed(text: str) -> JsonValue:
    """Text that holds a list or a map means that; anything else is the text itself."""
    if not text.strip().startswith(("[", "{")):
        return text
    try:
        return decode(text.encode())
    except (NoetlError, UnicodeEncodeError):
        return text
