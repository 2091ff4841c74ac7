"""Which results are tables, and how such a result is taken apart into its rows and the rest, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue, decode, encode
from noetl_core.errors import Corrupt, NotCanonical

ROWS_KEYS: Final = ("rows", "data")
"""Where a map has the rows that make it a table (§7.7 of the language); the first that is a list of maps counts."""
MAX_REST_BYTES: Final = 1024 * 1024
"""What a result has besides its rows is read with every slice of them, so it is small, or all of it is JSON."""
_MAX_DEPTH: Final = 4
"""A result, its `results`, a label, a field: so deep the same rows stand in the result of a pipeline."""

Place = tuple[str, ...]
"""The keys that lead to rows within a result; none if the result is the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabular:
    """A result whose rows have been taken out."""

    rows: Sequence[JsonObject]
    places: tuple[Place, ...]
    """Where they stand: a pipeline's result has the same rows on top, under a label and elsewhere."""
    rest: JsonValue = None

    def note(self) -> bytes:
        """What is kept with the rows, so that the payload is the whole result; the rows alone need no note."""
        if self.places == ((),):
            return b""
        return encode({"rest": self.rest, "at": [[*place] for place in self.places]})

    def whole(self, rows: object) -> Any:
        """The result with these rows in their places."""
        whole: Any = self.rest
        for place in self.places:
            whole = _put(whole, place, rows)
        return whole


def tabular(result: JsonValue) -> Tabular | None:
    """The result taken apart, if it is a table: a list of maps, or a map that has one as its `rows` or `data`."""
    if _are_rows(result):
        return Tabular(rows=result, places=((),))  # type: ignore[arg-type]  # just looked at
    if not isinstance(result, dict):
        return None
    rows = next((result[key] for key in ROWS_KEYS if _are_rows(result.get(key))), None)
    if rows is None:
        return None
    places = tuple(_places(result, rows))
    return Tabular(rows=rows, places=places, rest=_without(result, rows, 0))  # type: ignore[arg-type]


def from_note(note: bytes) -> Tabular:
    """What stands around rows that were stored with this note."""
    if not note:
        return Tabular(rows=(), places=((),))
    try:
        match decode(note):
            case {"rest": rest, "at": list(places)}:
                return Tabular(rows=(), places=tuple(_place(one) for one in places), rest=rest)
    except NotCanonical as exc:
        raise Corrupt(f"the note of a table is no JSON: {exc.message}") from exc
    raise Corrupt("the note of a table does not say where its rows stand")


def _are_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) and row for row in value)


def _places(value: Mapping[str, JsonValue], rows: object, above: Place = ()) -> Iterator[Place]:
    """The very same list: equal ones may differ in what Python takes for equal, such as 1 and true."""
    for key, child in value.items():
        if child is rows:
            yield (*above, key)
        elif isinstance(child, dict) and len(above) < _MAX_DEPTH - 1:
            yield from _places(child, rows, (*above, key))


def _without(value: Mapping[str, JsonValue], rows: object, depth: int) -> JsonObject:
    return {
        key: _without(child, rows, depth + 1) if isinstance(child, dict) and depth < _MAX_DEPTH - 1 else child
        for key, child in value.items()
        if child is not rows
    }


def _put(value: Any, place: Place, rows: object) -> Any:
    if not place:
        return rows
    around = value if isinstance(value, dict) else {}
    return {**around, place[0]: _put(around.get(place[0]), place[1:], rows)}


def _place(keys: JsonValue) -> Place:
    if not isinstance(keys, list):
        raise Corrupt("a place of rows is no list of keys")
    return tuple(map(str, keys))
