"""Rows that lie in chunks, of which those are loaded that somebody reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate

from noetl_core.canonical import JsonValue
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.outputs import Kept, seen
from noetl_core.playbook.partial_rows import PartialRows
from noetl_servicekit.chunk_rows import MARK, StoredChunk, chunks_of, with_rows

from noetl_worker.application.row_reads import ProbedRows, Read, note_reads

RowsOf = Callable[[PayloadRef], Awaitable[list[JsonValue]]]
"""Who loads a chunk."""


class StreamsOfResult:
    """All rows of a result that went out in chunks: a pipeline may have several."""

    def __init__(self, value: JsonValue, *, tenant_id: str, organization_id: str) -> None:
        self._value = value
        self._streams: list[_Stream] = []

        def probe(mark: list[list[JsonValue]]) -> ProbedRows:
            stream = _Stream(mark, chunks_of(mark, tenant_id=tenant_id, organization_id=organization_id))
            self._streams.append(stream)
            return stream.probe

        self._probed = with_rows(value, probe)

    def note(self, reads: Iterable[Read], kept: Kept) -> None:
        """Remember which rows are read."""
        note_reads(reads, seen(self._probed, kept))

    def read_whole_what_is_read(self) -> None:
        """Somebody else wants the rows too, and takes them all or none."""
        for stream in self._streams:
            stream.probe.is_read_whole = stream.probe.is_touched

    async def load(self, rows_of: RowsOf) -> object:
        """The result with its rows where somebody reads them; elsewhere it still says where they are."""
        for stream in self._streams:
            await stream.load(rows_of)
        streams = iter(self._streams)
        return with_rows(self._value, lambda mark: next(streams).rows())


class _Stream:
    """The rows in one place."""

    def __init__(self, mark: list[list[JsonValue]], chunks: Sequence[StoredChunk]) -> None:
        self._mark = mark
        self._chunks = tuple(chunks)
        self._starts = tuple(accumulate((chunk.row_count for chunk in chunks), initial=0))
        self._loaded: dict[int, list[JsonValue]] = {}
        self.probe = ProbedRows(self._starts[-1])

    async def load(self, rows_of: RowsOf) -> None:
        for start, chunk in zip(self._starts, self._chunks, strict=False):
            if self.probe.is_read(start, start + chunk.row_count):
                self._loaded[start] = await rows_of(chunk.ref)

    def rows(self) -> object:
        if not self.probe.is_touched:
            return {MARK: self._mark}
        if len(self._loaded) == len(self._chunks):
            return [row for start in self._starts[:-1] for row in self._loaded[start]]
        return PartialRows(self._starts[-1], self._loaded)
