"""Finds the item that a command runs: a stored collection is read once, and kept while its items are asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from noetl_core.canonical import JsonValue
from noetl_core.errors import Corrupt
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import LoopItem
from noetl_core.stages.rows import FrameRows
from noetl_servicekit.stored_values import StoredValues

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of collections that are kept; one that is larger is kept alone, since each of its items needs it."""


class LoopItems:
    """Items by index; commands of one loop that ask at the same time wait for one reading."""

    def __init__(self, values: StoredValues, *, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._values = values
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[str, tuple[int, list[JsonValue]]] = OrderedDict()
        self._reading = asyncio.Lock()

    async def value(self, item: LoopItem) -> JsonValue:
        """The item; raises `NotFound` (REFERENCE_NOT_AVAILABLE) when the collection is gone."""
        if item.collection is None:
            value: JsonValue = item.value
            return value
        values = await self._collection(item.collection)
        if item.index >= len(values):
            raise Corrupt(f"the collection {item.collection.uri} has {len(values)} items, and none at {item.index}")
        return values[item.index]

    async def rows(self, frame: FrameRows) -> list[JsonValue]:
        """The rows of a frame; raises as `value` does."""
        if frame.collection is None:
            return list(frame.values or ())
        values = await self._collection(frame.collection)
        first, last = frame.start - frame.collection_at, frame.stop - frame.collection_at
        if last > len(values):
            raise Corrupt(f"the collection {frame.collection.uri} has {len(values)} items, not {last}")
        return values[first:last]

    async def _collection(self, ref: PayloadRef) -> list[JsonValue]:
        async with self._reading:
            kept = self._kept.get(ref.uri)
            if kept is not None:
                self._kept.move_to_end(ref.uri)
                return kept[1]
            values = await self._values.get(ref)
            if not isinstance(values, list):
                raise Corrupt(f"the collection {ref.uri} is no list")
            self._kept[ref.uri] = (ref.bytes, values)
            while len(self._kept) > 1 and sum(size for size, _ in self._kept.values()) > self._max_kept_bytes:
                self._kept.popitem(last=False)
            return values
