"""Both ends of what a child process printed; a flood is slowed down, and neither stored nor a burden."""

import asyncio
import os

_CHUNK_BYTES = 65_536
_PAUSE_SECONDS = 0.004
"""After a full chunk: at most 16 MB/s of one child's output reach the event loop."""

_MAX_DRAIN_CHUNKS = 16
"""A pipe holds one chunk, or sixteen if user code enlarged it; beyond that somebody keeps writing."""


class OutputTail:
    """Reads one pipe of a child as it fills, keeping at most `limit_bytes` since the last call ended.

    That is the first `head_bytes`, and the last of the rest.
    """

    def __init__(self, fd: int, *, limit_bytes: int, head_bytes: int = 0) -> None:
        self._fd = fd
        self._limit_bytes = limit_bytes
        self._head_bytes = min(head_bytes, limit_bytes // 4)
        self._kept = bytearray()
        self._dropped_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = True
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._on_readable)

    def take(self) -> str:
        """What was printed so far; what comes later belongs to the next call.

        A child flushes before it answers, so by then all of a call's output is in the pipe.
        """
        self._drain()
        head = self._head_bytes if self._dropped_bytes else 0
        text = _text(self._kept[head:])
        if self._dropped_bytes:
            before = f"{_text(self._kept[:head])}\n" if head else ""
            text = f"{before}… {self._dropped_bytes} bytes before this are left out\n{text}"
        self._kept.clear()
        self._dropped_bytes = 0
        return text

    def finish(self) -> None:
        """The child has ended: keep what it still wrote, to be taken, and read no more."""
        self._drain()
        self._close()

    def _close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _drain(self) -> None:
        for _ in range(_MAX_DRAIN_CHUNKS):
            if not self._read():
                break

    def _on_readable(self) -> None:
        if self._read() == _CHUNK_BYTES:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._on_readable)

    def _read(self) -> int:
        if not self._is_open:
            return 0
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not chunk:
            self._close()
            return 0
        self._kept += chunk
        excess = len(self._kept) - self._limit_bytes
        if excess > 0:
            del self._kept[self._head_bytes : self._head_bytes + excess]
            self._dropped_bytes += excess
        return len(chunk)


def _text(kept: bytearray) -> str:
    return kept.decode(errors="replace").replace("\0", "\N{SYMBOL FOR NULL}")
