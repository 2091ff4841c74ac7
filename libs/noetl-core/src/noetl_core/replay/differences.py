"""What changed between two points of a history, row by row and field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from noetl_core.canonical import JsonObject, encode
from noetl_core.surfaces.checksums import in_order
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.surfaces.surface_fold import Rows


class _Absence:
    """What a field has that is not there: null is a value."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absence()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that came, went, or became another."""

    surface: Surface
    key: str
    before: Row | None
    after: Row | None

    @property
    def kind(self) -> str:
        """added, removed or changed."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    def fields(self) -> Iterator[tuple[str, Any, Any]]:
        """Path, old and new value of what differs; objects are compared by their members."""
        yield from _fields("", self.before or {}, self.after or {})

    def to_json(self) -> JsonObject:
        """For whoever reads it with a program; a side on which a field is absent is absent too."""
        changes: list[Any] = [_change(name, old, new) for name, old, new in self.fields()]
        return {"surface": str(self.surface), "key": self.key, "kind": self.kind, "changes": changes}


def differences(before: Rows, after: Rows) -> Iterator[RowDifference]:
    """By surface, in the order of keys."""
    for surface in Surface:
        old, new = before.get(surface, {}), after.get(surface, {})
        for key in in_order({*old, *new}):
            if not _same(old.get(key, ABSENT), new.get(key, ABSENT)):
                yield RowDifference(surface=surface, key=key, before=old.get(key), after=new.get(key))


def _same(old: object, new: object) -> bool:
    """Whether both are the same to checksums; to Python true is 1 as well."""
    if old is ABSENT or new is ABSENT:
        return old is new
    return encode(old) == encode(new)


def _change(name: str, old: object, new: object) -> dict[str, Any]:
    sides = {"from": old, "to": new}
    return {"field": name, **{side: value for side, value in sides.items() if value is not ABSENT}}


def _fields(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*old, *new}):
        was, now = old.get(name, ABSENT), new.get(name, ABSENT)
        if _same(was, now):
            continue
        where = f"{path}.{name}" if path else name
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _fields(where, was, now)
        else:
            yield where, was, now
