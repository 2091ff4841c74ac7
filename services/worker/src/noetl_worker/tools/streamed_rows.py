"""Gives rows out in chunks without counting the wait for their takers as time of the call."""

from __future__ import annotations

import asyncio

from noetl_core.canonical import JsonValue

from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.sinks import ChunkSink
from noetl_worker.tools.sql_results import Row


class UntimedSink:
    """A sink during whose waits a timeout stands still."""

    def __init__(self, sink: ChunkSink, limit: CallLimit | asyncio.Timeout) -> None:
        self._sink = sink
        self._limit = limit
        self.chunk_rows = sink.chunk_rows
        self.row_count = 0

    async def put(self, rows: list[Row]) -> None:
        """Give a chunk out."""
        loop = asyncio.get_running_loop()
        when = self._limit.when()
        left = None if when is None else max(when - loop.time(), 0.0)
        self._limit.reschedule(None)
        self.row_count += len(rows)
        items: list[JsonValue] = [*rows]
        await self._sink.put(items)
        self._limit.reschedule(None if left is None else loop.time() + left)
