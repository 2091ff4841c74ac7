"""Rows of a table of which only some are here: slices and single rows of it can be read, and how many there are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from noetl_core.playbook.views import Key, NotInView, View, index_of


class PartialRows(View):
    """What a template does not ask for need not be loaded; what is missing says so, and is never taken for nothing."""

    def __init__(self, total: int, segments: Mapping[int, Sequence[object]]) -> None:
        self._total = total
        self._segments = segments
        self._starts = sorted(segments)

    def lookup(self, key: Key) -> object:
        index = index_of(key)
        if index is None or not -self._total <= index < self._total:
            raise KeyError(key)
        return self._at(index % self._total)

    def whole(self) -> object:
        return self[:]

    def least(self) -> object:
        return self

    def missing(self, start: int, stop: int) -> NotInView:
        """Why these rows cannot be read; whoever can have them loaded remembers which."""
        return NotInView(f"rows {start} to {stop} of a large result were not loaded")

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[object]:
        return map(self._at, range(self._total))

    def __reversed__(self) -> Iterator[object]:
        return map(self._at, reversed(range(self._total)))

    @overload
    def __getitem__(self, key: int) -> object: ...

    @overload
    def __getitem__(self, key: slice) -> list[object]: ...

    def __getitem__(self, key: int | slice) -> object:
        if isinstance(key, int):
            return self.lookup(key)
        wanted = range(self._total)[key]
        if not wanted:
            return []
        lowest, highest = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
        if not self._has(lowest, highest + 1):
            raise self.missing(lowest, highest + 1)
        return [self._at(index) for index in wanted]

    def _at(self, index: int) -> object:
        position = bisect_right(self._starts, index) - 1
        if position >= 0:
            start = self._starts[position]
            rows = self._segments[start]
            if index - start < len(rows):
                return rows[index - start]
        raise self.missing(index, index + 1)

    def _has(self, start: int, stop: int) -> bool:
        position = bisect_right(self._starts, start) - 1
        while position >= 0 and start < stop and position < len(self._starts):
            first = self._starts[position]
            end = first + len(self._segments[first])
            if first > start or end <= start:
                return False
            start, position = end, position + 1
        return start >= stop
