"""Results above the limit: a compact view that templates read, and the data behind it when they read more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.playbook.outputs import Kept
from noetl_core.playbook.views import Key, NotInView, View, least_of, look_into, whole_of
from noetl_core.table_index import TableIndex

MAX_FIELDS = 200
MAX_FIELDS_BYTES = 16 * 1024
MAX_TEXT_CHARACTERS = 1024
MAX_SELECTED_BYTES = 8 * 1024
MAX_SELECTED_TOTAL_BYTES = 64 * 1024
PREVIEW_CHARACTERS = 256
_MAX_COLUMNS = 200
_MAX_DEPTH = 4


def compact_view(result: JsonValue, *, ref: str, sha256: str, size_bytes: int, kept: Kept) -> JsonObject:
    """What stands for a large result: where it is, how large, how it begins, and its small parts."""
    store = kept.store_of(size_bytes)
    view: JsonObject = {
        "_ref": {"kind": "result_ref", "ref": ref, "store": store, "sha256": sha256},
        "_store": store,
        "_size_bytes": size_bytes,
        "_preview": _preview(result),
    }
    if isinstance(result, dict):
        fields = {**_table_fields(result), **_small_fields(result)}
        view.update((name, value) for name, value in _bounded(fields) if name not in view)
    elif isinstance(result, list):
        view.update(_table_fields({"rows": result}))
        view["_count"] = len(result)
    return view


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeView:
    """What is stored beside a large result, and loaded instead of it."""

    view: JsonObject
    selected: Sequence[tuple[tuple[str, ...], JsonValue]] = ()
    keys: frozenset[str] | None = None
    """What the result has on top: what is not among them is known to be missing. None if there are too many."""
    table: TableIndex | None = None
    """Where rows lie in the result, if it is stored as a table."""

    @classmethod
    def of(cls, result: JsonValue, view: JsonObject, kept: Kept, table: TableIndex | None = None) -> LargeView:
        """With the parts that the playbook selects, as far as they are small enough."""
        selected: list[tuple[tuple[str, ...], JsonValue]] = []
        left = MAX_SELECTED_TOTAL_BYTES
        named = dict(view)
        for one in kept.selections:
            try:
                value: Any = whole_of(one.find(result))
            except KeyError:
                continue
            size = len(encode(value))
            if size > MAX_SELECTED_BYTES or size > left:
                continue
            left -= size
            selected.append((one.path, value))
            if one.name is not None and not (isinstance(result, dict) and one.name in result):
                named.setdefault(one.name, value)
        return cls(view=named, selected=selected, keys=_keys(result), table=table)

    def to_json(self) -> JsonObject:
        """The form that is stored."""
        keys: JsonValue = None if self.keys is None else [*sorted(self.keys)]
        selected: list[JsonValue] = [{"path": [*path], "is": value} for path, value in self.selected]
        stored: JsonObject = {"view": self.view, "selected": selected, "keys": keys}
        return stored if self.table is None else {**stored, "table": self.table.to_json()}

    @classmethod
    def from_json(cls, stored: Any) -> LargeView:
        """Read the form that is stored."""
        return cls(
            view=stored["view"],
            selected=[(tuple(one["path"]), one["is"]) for one in stored["selected"]],
            keys=None if stored["keys"] is None else frozenset(stored["keys"]),
            table=TableIndex.from_json(stored["table"]) if "table" in stored else None,
        )


class LargeResult(View):
    """A large result as templates see it: small parts from its view, others from the data, which may not be there."""

    def __init__(self, large: LargeView, data: object) -> None:
        self._large = large
        self._data = data

    def lookup(self, key: Key) -> object:
        return _below(self, (str(key),), key)

    def whole(self) -> object:
        return whole_of(self._data)

    def least(self) -> object:
        return least_of(self._data)

    def passed(self) -> object:
        return self._large.view

    def found(self, path: tuple[str, ...]) -> object:
        """The value at a path from the view, if it has it; raises `KeyError` if it has nothing of it."""
        if len(path) == 1 and path[0] in self._large.view:
            return self._large.view[path[0]]
        for place, value in self._large.selected:
            if place == path:
                return value
        if any(place[: len(path)] == path for place, _ in self._large.selected):
            return _Partial(self, path)
        raise KeyError(path)

    def is_missing(self, path: tuple[str, ...]) -> bool:
        """Whether it is known without the data that there is nothing at a path."""
        is_index = path[0].removeprefix("-").isdigit()
        return self._large.keys is not None and path[0] not in self._large.keys and not is_index

    def loaded(self, path: tuple[str, ...]) -> object:
        """The value at a path of the data; `NotInView` if they are not loaded, `KeyError` if there is none."""
        value = self._data
        for key in path:
            value = look_into(value, key)
        return value


class NotLoaded(View):
    """Data that were left where they are."""

    def lookup(self, key: Key) -> object:
        raise NotInView(f"{key!r} of a large result was not loaded")

    def whole(self) -> object:
        raise NotInView("a large result was not loaded")


class _Partial(View):
    """A place in a large result below which only selected parts are known without loading."""

    def __init__(self, result: LargeResult, path: tuple[str, ...]) -> None:
        self._result = result
        self._path = path

    def lookup(self, key: Key) -> object:
        return _below(self._result, (*self._path, str(key)), key)

    def whole(self) -> object:
        return whole_of(self._result.loaded(self._path))

    def least(self) -> object:
        return least_of(self._result.loaded(self._path))


def _below(result: LargeResult, path: tuple[str, ...], key: Key) -> object:
    try:
        return result.found(path)
    except KeyError:
        if result.is_missing(path):
            raise KeyError(key) from None
    try:
        return result.loaded(path)
    except KeyError:
        raise KeyError(key) from None


def _keys(result: JsonValue) -> frozenset[str] | None:
    if not isinstance(result, dict):
        return frozenset()
    is_short = len(result) <= MAX_FIELDS and sum(map(len, result)) <= MAX_SELECTED_BYTES
    return frozenset(result) if is_short else None


def _bounded(fields: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    left = MAX_FIELDS_BYTES
    for name, value in islice(fields.items(), MAX_FIELDS):
        left -= len(name) + len(encode(value))
        if left >= 0:
            yield name, value


def _small_fields(result: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Scalars on top, counts of arrays, and scalars of nested maps with their keys joined; own names win."""
    fields: dict[str, JsonValue] = {name: value for name, value in result.items() if _is_small(value)}
    for name, value in _nested(result):
        if name not in result:
            fields.setdefault(name, value)
    return fields


def _nested(result: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    pending: list[tuple[tuple[str, ...], JsonValue]] = [((name,), value) for name, value in result.items()]
    given = 0
    for path, value in pending:  # grows while it is walked: upper levels come first
        if given >= MAX_FIELDS:
            return
        if isinstance(value, list):
            given += 1
            yield "_".join((*path, "count")), len(value)
        elif isinstance(value, dict):
            if len(path) < _MAX_DEPTH:
                pending.extend(((*path, key), child) for key, child in islice(value.items(), MAX_FIELDS))
        elif len(path) > 1 and _is_small(value):
            given += 1
            yield "_".join(path), value


def _table_fields(result: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """For a table: its columns and how many rows it has, as the tool says or as the rows show."""
    rows = result.get("rows")
    if not isinstance(rows, list):
        return {}
    columns = result.get("columns")
    if not isinstance(columns, list):
        first = rows[0] if rows else None
        columns = list(first) if isinstance(first, dict) else None
    fields: dict[str, JsonValue] = {"row_count": len(rows)}
    if columns is not None and len(columns) <= _MAX_COLUMNS:
        fields["columns"] = columns
    return fields


def _preview(result: JsonValue) -> str:
    """How the data begin: only as much is spelled as is shown."""
    match result:
        case dict():
            begun: JsonValue = {name: _begun(value) for name, value in islice(result.items(), 8)}
        case _:
            begun = _begun(result)
    return encode(begun).decode()[:PREVIEW_CHARACTERS]


def _begun(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return value[:PREVIEW_CHARACTERS]
        case list():
            return [_begun(one) if not isinstance(one, list | dict) else _scalars(one) for one in value[:3]]
        case dict():
            return _scalars(value)
        case _:
            return value


def _scalars(value: Mapping[str, JsonValue] | Sequence[JsonValue]) -> JsonValue:
    if isinstance(value, Mapping):
        pairs = islice(value.items(), 8)
        return {name: _begun(child) for name, child in pairs if not isinstance(child, list | dict)}
    return [_begun(child) for child in islice(value, 8) if not isinstance(child, list | dict)]


def _is_small(value: JsonValue) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT_CHARACTERS
    return not isinstance(value, list | dict)
