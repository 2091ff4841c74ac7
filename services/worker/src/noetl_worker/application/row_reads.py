"""Which rows of a large table templates read, so that the others need not be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from noetl_core.playbook.large_results import LargeResult, LargeView, NotLoaded
from noetl_core.playbook.references import Reference
from noetl_core.playbook.slices import Cut, rows_of
from noetl_core.playbook.views import DataView, Key, NotInView, StepView, View, index_of, least_of, look_into, passed_of
from noetl_core.table_index import TableIndex
from noetl_core.tabular import Tabular


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How a template reads a result."""

    root: str
    """By the step's name (`steps`) or as `result`."""
    path: Reference
    """The constant keys below."""
    is_handed_on: bool = False
    """Whether the value there is all that the template is."""
    cuts: frozenset[Cut] | None = None
    """What is read of a list there, if that is not all of it."""

    def value_in(self, result: object) -> object:
        """What the template finds; `KeyError` if there is nothing, `NotInView` if that is not known."""
        value: object = DataView(result) if self.root == "result" else StepView(result)
        for key in self.path:
            value = look_into(value, key)
        return value

    def is_in(self, result: object) -> bool:
        """Whether the template finds what it reads without the data."""
        try:
            value = self.value_in(result)
            if self.path or self.is_handed_on:
                return _is_loaded(passed_of(value))
        except KeyError:
            return True
        except NotInView:
            return False
        return False


def _is_loaded(value: object) -> bool:
    """Whether a value that is handed on is whole: a map of counts may hold items that were left where they are."""
    if isinstance(value, dict):
        return all(map(_is_loaded, value.values()))
    return not isinstance(value, NotLoaded)


def batches_read(
    reads: Iterable[Read], large: LargeView, index: TableIndex, seen: Callable[[object], object]
) -> frozenset[int] | None:
    """The batches of a table that have all rows that are read, or None if somebody reads all of them, or may."""
    rows = ProbedRows(index.row_count)
    note_reads(reads, seen(LargeResult(large, Tabular(rows=(), places=index.places).whole(rows))))
    return None if rows.is_read_whole else index.batches_of(rows.wanted)


def note_reads(reads: Iterable[Read], probed: object) -> None:
    """Let the rows in a result know what is read of them."""
    for read in reads:
        try:
            value = least_of(read.value_in(probed))
        except (KeyError, NotInView):
            continue  # besides the rows, which is read with any of them; or nowhere
        if isinstance(value, ProbedRows) and read.cuts is not None:
            value.wanted.extend(rows_of(cut, value.total) for cut in read.cuts)
        else:
            _read_whole(value)


def _read_whole(value: object) -> None:
    if isinstance(value, ProbedRows):
        value.is_read_whole = True
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            _read_whole(child)


@dataclass(slots=True, eq=False)
class ProbedRows(View):
    """Stands for rows, and notes which of them are looked at."""

    total: int
    wanted: list[tuple[int, int]] = field(default_factory=list)
    is_read_whole: bool = False

    @property
    def is_touched(self) -> bool:
        """Whether anything is asked of them, be it their number."""
        return self.is_read_whole or bool(self.wanted)

    def is_read(self, start: int, stop: int) -> bool:
        """Whether any row of a range is read."""
        return self.is_read_whole or any(start < end and first < stop for first, end in self.wanted)

    def lookup(self, key: Key) -> object:
        index = index_of(key)
        if index is None or not -self.total <= index < self.total:
            raise KeyError(key)
        place = index % self.total
        self.wanted.append((place, place + 1))
        return _Row()

    def whole(self) -> object:
        raise NotInView("rows are only looked for")

    def least(self) -> object:
        return self


class _Row(View):
    """A row, of which anything may be read."""

    def lookup(self, key: Key) -> object:
        return self

    def whole(self) -> object:
        return None

    def least(self) -> object:
        return self
