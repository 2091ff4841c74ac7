"""The worker's end of a child's socket: one request out, one framed answer back."""

import asyncio
from typing import cast

from noetl_worker.tools.python_protocol import LENGTH


class ChannelClosed(Exception):
    """The child hung up, or said something that is not its protocol."""


class ChildChannel(asyncio.Protocol):
    """Collects exactly the frames that were asked for; anything else closes the channel."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether the child has not hung up."""
        return not self._closed

    async def request(self, message: bytes) -> bytes:
        """Send one message and wait for its answer."""
        if self._closed or self._transport is None or self._received:
            raise ChannelClosed
        self._transport.writelines((LENGTH.pack(len(message)), message))
        return await self.receive()

    async def receive(self) -> bytes:
        """The next frame."""
        if self._closed:
            raise ChannelClosed
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            self._deliver()
            return await self._waiting
        finally:
            self._waiting = None

    def close(self) -> None:
        """Hang up at once, whatever is still to be sent or read."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._received += data
        self._deliver()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._closed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ChannelClosed())

    def _deliver(self) -> None:
        if len(self._received) < LENGTH.size:
            return
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        if max(end, len(self._received)) > LENGTH.size + self._max_frame_bytes:
            self.close()
            return
        if len(self._received) < end or self._waiting is None or self._waiting.done():
            return
        frame = bytes(memoryview(self._received)[LENGTH.size : end])
        del self._received[:end]
        self._waiting.set_result(frame)
