"""Rows that are stored in chunks: how a result refers to them, and how they are put together where they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.locator import payload_locator
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.references import referenced_paths
from noetl_core.ports.payloads import AttachPayloads
from noetl_core.ports.tables import ReadTables, TakeRows

from noetl_servicekit.stored_values import StoredValues
from noetl_servicekit.table_parts import TableParts

MARK: Final = "_chunks"
MARK_FIELDS: Final = 4
_MAX_DEPTH = 4
"""A result, its `results`, a label, a field: deeper, chunks are data that happen to look like ours."""

_SCALARS = frozenset(
    {
        "chunk_count",
        "columns",
        "item_count",
        "message",
        "pages",
        "partition_count",
        "row_count",
        "schema",
        "statement_count",
        "status",
        "status_code",
    }
)
"""What a streamed result has besides its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunk:
    """Where the rows of one chunk are, and how many."""

    ref: PayloadRef
    row_count: int


def mark_of(chunks: Sequence[StoredChunk]) -> JsonObject:
    """What stands in a result instead of the rows; no condition can take it for them, since it is no scalar."""
    return {MARK: [[one.ref.sha256, one.ref.bytes, one.row_count, one.ref.media_type] for one in chunks]}


def is_streamed(value: JsonValue) -> bool:
    """Whether a result, or one of a pipeline's, has rows in chunks."""
    return bool(_marks(value))


def chunks_of(mark: Sequence[Sequence[JsonValue]], *, tenant_id: str, organization_id: str) -> list[StoredChunk]:
    """Where the rows are that a mark stands for."""
    return [StoredChunk(ref=_ref_of(entry, tenant_id, organization_id), row_count=int(str(entry[2]))) for entry in mark]


def with_rows(value: JsonValue, rows_of: Callable[[list[list[JsonValue]]], object], depth: int = _MAX_DEPTH) -> Any:
    """The value with something in the place of its marks."""
    if not isinstance(value, dict) or depth == 0:
        return value
    mark = _mark_in(value)
    if mark is not None:
        return rows_of(mark)
    return {
        key: [with_rows(item, rows_of, depth - 1) for item in child]
        if key == "results" and isinstance(child, list)
        else with_rows(child, rows_of, depth - 1)
        for key, child in value.items()
    }


def reads_rows(texts: Iterator[str] | Sequence[str], names: frozenset[str]) -> bool:
    """Whether templates read more of a streamed result than its scalars; user code may read anything."""
    for text in texts:
        if "context" in text or "main" in text:
            return True
        for path in referenced_paths(text):
            below = [key for key in path if key not in {"steps", "results", "data", "result", "_prev", "output"}]
            if path[0] in names and (not below or not _SCALARS.intersection(below)):
                return True
    return False


class LoadRows:
    """Puts rows where their marks are."""

    def __init__(self, payloads: AttachPayloads, tables: ReadTables) -> None:
        self.values = StoredValues(payloads, tables)
        self.parts = TableParts(payloads, tables)

    async def __call__(self, value: JsonValue, *, tenant_id: str, organization_id: str) -> JsonValue:
        """The value with all of its rows; raises `NotFound` if some are gone."""
        wanted = {str(entry[0]): entry for mark in _marks(value) for entry in mark}
        loaded: dict[str, list[JsonValue]] = {}
        for sha256, entry in wanted.items():
            loaded[sha256] = await self.rows(_ref_of(entry, tenant_id, organization_id))
        whole: JsonValue = with_rows(value, lambda mark: [row for entry in mark for row in loaded[str(entry[0])]])
        return whole

    async def rows(self, ref: PayloadRef) -> list[JsonValue]:
        """The rows of one chunk."""
        rows = await self.values.get(ref)
        return rows if isinstance(rows, list) else [rows]

    async def in_chunks(self, refs: Sequence[PayloadRef], *, size: int) -> AsyncIterator[list[JsonValue]]:
        """All rows of these payloads in lists of `size`, the last of which may have fewer.

        Besides the list that was given out, only that exists which is being filled. The bytes of one payload are
        attached meanwhile; they are a table, and of one that is none all rows are read at once.
        """
        filled: list[JsonValue] = []  # always the same: a thread lets go of it some time after it is done
        for ref in refs:
            rows = await self.values.open_rows(ref)
            while await asyncio.to_thread(_fill, filled, rows, size):
                if len(filled) == size:
                    yield _emptied(filled)
            del rows  # its bytes go before those of the next one come
        if filled:
            yield filled


def _fill(rows: list[JsonValue], source: TakeRows, size: int) -> bool:
    """Whether there were any to add."""
    before = len(rows)
    rows.extend(source.take(size - before))
    return len(rows) > before


def _emptied(rows: list[JsonValue]) -> list[JsonValue]:
    """What was in a list that is used again."""
    taken = rows.copy()
    rows.clear()
    return taken


def chunk_refs(mark: JsonValue, *, tenant_id: str, organization_id: str) -> list[PayloadRef]:
    """The payloads that a mark names, in order; none if it is no mark."""
    entries = (_mark_in(mark) if isinstance(mark, dict) else None) or []
    return [_ref_of(entry, tenant_id, organization_id) for entry in entries]


def _ref_of(entry: Sequence[JsonValue], tenant_id: str, organization_id: str) -> PayloadRef:
    sha256 = str(entry[0])
    uri = payload_locator(tenant_id=tenant_id, organization_id=organization_id, sha256=sha256)
    return PayloadRef(uri=str(uri), sha256=sha256, media_type=str(entry[3]), bytes=int(str(entry[1])))


def _marks(value: JsonValue, depth: int = _MAX_DEPTH) -> list[list[list[JsonValue]]]:
    """A list and no generator: each row of a frame asks for it several times, mostly in vain."""
    if not isinstance(value, dict) or depth == 0:
        return []
    mark = _mark_in(value) if len(value) == 1 else None
    if mark is not None:
        return [mark]
    found: list[list[list[JsonValue]]] = []
    for key, child in value.items():
        if isinstance(child, dict):
            found += _marks(child, depth - 1)
        elif key == "results" and isinstance(child, list):  # those of a loop
            for item in child:
                found += _marks(item, depth - 1)
    return found


def _mark_in(value: Mapping[str, JsonValue]) -> list[list[JsonValue]] | None:
    mark = value.get(MARK) if len(value) == 1 else None
    if not isinstance(mark, list):
        return None
    entries = [entry for entry in mark if isinstance(entry, list) and len(entry) == MARK_FIELDS]
    return entries if len(entries) == len(mark) else None
