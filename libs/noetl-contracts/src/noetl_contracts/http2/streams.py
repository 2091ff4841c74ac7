"""A stream of a connection: what it may send, what it may get, and what waits for its turn."""

from __future__ import annotations

import asyncio
from collections import deque

from noetl_contracts.http2 import frames


class Stream:
    """One call on a connection. Data that windows do not let out yet waits here, in order."""

    __slots__ = ("_waiter", "receive_left", "send_window", "stream_id", "unsent")

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.send_window = 0
        self.receive_left = 0
        self.unsent: deque[tuple[memoryview, bytes, bool]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def keep_unsent(self, data: bytes, *, tail: bytes, ends: bool) -> None:
        """`tail` are frames that follow the data; they need no window."""
        self.unsent.append((memoryview(data), tail, ends))

    def next_part(self, most: int) -> tuple[int, bytes] | None:
        """So much of what waits as may go now: how much of it counts, and its frames; None if nothing may."""
        if not self.unsent:
            return None
        data, tail, ends = self.unsent[0]
        size = min(len(data), max(most, 0))
        if not size and len(data):
            return None
        is_last = size == len(data)
        flags = frames.END_STREAM if ends and is_last else 0
        head = frames.frame_head(size, frames.DATA, flags, self.stream_id) if size or flags else b""
        if is_last:
            self.unsent.popleft()
            return size, b"".join((head, data, tail))
        self.unsent[0] = (data[size:], tail, ends)
        return size, b"".join((head, data[:size]))

    def drop_unsent(self) -> None:
        self.unsent.clear()
        self.on_sent()

    def on_sent(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    async def until_sent(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiter is None:
            self._waiter = loop.create_future()
        await asyncio.shield(self._waiter)
