"""Which rows of a large table templates read, so that the others need not be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from noetl_core.playbook.large_results import LargeResult, LargeView
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
                passed_of(value)
                return True
        except KeyError:
            return True
        except NotInView:
            return False
        return False


def batches_read(
    reads: Iterable[Read], large: LargeView, index: TableIndex, seen: Callable[[object], object]
) -> frozenset[int] | None:
    """The batches of a table that have all rows that are read, or None if somebody reads all of them, or may."""
    rows = _Rows(index.row_count)
    probed = seen(LargeResult(large, Tabular(rows=(), places=index.places).whole(rows)))
    for read in reads:
        try:
            value = least_of(read.value_in(probed))
        except (KeyError, NotInView):
            continue  # besides the rows, which is read with any of them; or nowhere
        if value is rows:
            if read.cuts is None:
                return None
            rows.wanted.extend(rows_of(cut, rows.total) for cut in read.cuts)
        elif not isinstance(value, _Row) and _may_hold(value, rows):
            return None
    return index.batches_of(rows.wanted)


def _may_hold(value: object, rows: object) -> bool:
    if isinstance(value, dict):
        return any(_may_hold(child, rows) for child in value.values())
    return value is rows or isinstance(value, View)


@dataclass(slots=True)
class _Rows(View):
    """Notes which rows are looked at."""

    total: int
    wanted: list[tuple[int, int]] = field(default_factory=list)

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
