"""Finds the item that a command runs: a stored collection is read once, and kept while its items are asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from noetl_core.canonical import JsonValue, decode
from noetl_core.errors import Corrupt
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import LoopItem
from noetl_core.ports.payloads import PayloadStore

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of collections that are kept; one that is larger is kept alone, since each of its items needs it."""


class LoopItems:
    """Items by index; commands of one loop that ask at the same time wait for one reading."""

    def __init__(self, payloads: PayloadStore, *, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._payloads = payloads
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

    async def _collection(self, ref: PayloadRef) -> list[JsonValue]:
        async with self._reading:
            kept = self._kept.get(ref.uri)
            if kept is not None:
                self._kept.move_to_end(ref.uri)
                return kept[1]
            data = await self._payloads.get(ref)
            # In a thread: a large collection takes long to read, and leases must be kept up meanwhile.
            values = await asyncio.to_thread(decode, data)
            if not isinstance(values, list):
                raise Corrupt(f"the collection {ref.uri} is no list")
            self._kept[ref.uri] = (ref.bytes, values)
            while len(self._kept) > 1 and sum(size for size, _ in self._kept.values()) > self._max_kept_bytes:
                self._kept.popitem(last=False)
            return values
