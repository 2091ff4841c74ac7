"""Large tables as control expressions see them: rows that these read are remembered, loaded, and read again."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from noetl_core.payloads import PayloadRef
from noetl_core.playbook.partial_rows import PartialRows
from noetl_core.playbook.views import Key, NotInView, View, least_of, look_into
from noetl_core.table_index import TableIndex
from noetl_core.tabular import Tabular
from noetl_servicekit.chunk_rows import StoredChunk
from noetl_servicekit.table_parts import SomeRows, TableParts


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """Batches of a table that somebody wants to read."""

    ref: PayloadRef
    index: TableIndex
    batches: frozenset[int]


class LazyTable(View):
    """The data of a result that is stored as a table; `whole` of them is wanted by those who read all."""

    def __init__(
        self,
        ref: PayloadRef,
        index: TableIndex,
        whole: View,
        loaded: MutableMapping[str, Any],
        wanted: MutableMapping[str, Any],
    ) -> None:
        self._ref = ref
        self._index = index
        self._whole = whole
        self._loaded = loaded
        self._wanted = wanted

    def lookup(self, key: Key) -> object:
        place = self._place
        some: SomeRows | None = self._loaded.get(place)
        if some is None and (str(key),) not in self._index.places and () not in self._index.places:
            self._want(frozenset())  # what there is besides the rows comes with the header
            raise NotInView(f"{key!r} of {self._ref.uri} is not loaded yet")
        around = Tabular(rows=(), places=self._index.places) if some is None else some.around
        return look_into(around.whole(_Rows(self)), key)

    def whole(self) -> object:
        return self._whole.whole()

    def least(self) -> object:
        return _Rows(self) if () in self._index.places else least_of(self._whole)

    @property
    def _place(self) -> str:
        return f"{self._ref.uri}#rows"

    def segments(self) -> SomeRows | None:
        """What has been loaded so far."""
        some: SomeRows | None = self._loaded.get(self._place)
        return some

    def want_rows(self, start: int, stop: int) -> None:
        """Have these rows loaded, with those that were before."""
        some = self.segments()
        before = frozenset[int]() if some is None else frozenset(map(self._index.first_rows.index, some.segments))
        batches = before | self._index.batches_of([(start, stop)])
        if TableParts.is_worth_it(self._ref, self._index, batches):
            self._want(batches)
        else:
            self._whole.whole()  # wants all of it

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return self._index.row_count

    def _want(self, batches: frozenset[int]) -> None:
        self._wanted[self._place] = WantedRows(ref=self._ref, index=self._index, batches=batches)


class LazyChunks(PartialRows):
    """Rows that went out in chunks: those that are read are wanted, and then loaded."""

    def __init__(
        self, chunks: Sequence[StoredChunk], loaded: Mapping[str, Any], wanted: MutableMapping[str, Any]
    ) -> None:
        self._places = list(zip(accumulate((one.row_count for one in chunks), initial=0), chunks, strict=False))
        total = sum(one.row_count for one in chunks)
        super().__init__(total, {start: loaded[one.ref.uri] for start, one in self._places if one.ref.uri in loaded})
        self._is_loaded = loaded.keys()
        self._wanted = wanted

    def missing(self, start: int, stop: int) -> NotInView:
        for first, chunk in self._places:
            is_read = first < stop and start < first + chunk.row_count
            if is_read and chunk.ref.uri not in self._is_loaded:
                self._wanted[chunk.ref.uri] = chunk.ref
        return super().missing(start, stop)


class _Rows(PartialRows):
    def __init__(self, table: LazyTable) -> None:
        some = table.segments()
        super().__init__(table.row_count, {} if some is None else some.segments)
        self._table = table

    def missing(self, start: int, stop: int) -> NotInView:
        self._table.want_rows(start, stop)
        return super().missing(start, stop)

    def whole(self) -> object:
        whole: Any = self._table.whole()
        return whole
