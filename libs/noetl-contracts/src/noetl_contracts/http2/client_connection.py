"""The client's end of a connection: streams that we open, and what is answered on them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

import grpc

from noetl_contracts.http2 import frames
from noetl_contracts.http2.calls import CONTENT_TYPE, message_bytes
from noetl_contracts.http2.client_call import ClientCall, NotTaken
from noetl_contracts.http2.connection import Connection
from noetl_contracts.http2.frames import ConnectionBroken
from noetl_contracts.http2.header_blocks import Header, Headers, literal
from noetl_contracts.http2.streams import Stream

_KEPT_BLOCKS: Final = 512


class ClientConnection(Connection):
    """Calls begin here; one that cannot take any more says so by `takes_calls`."""

    def __init__(
        self, *, authority: str, user_agent: str, max_message_bytes: int, keepalive_seconds: float, patience: float
    ) -> None:
        super().__init__(
            settings={frames.ENABLE_PUSH: 0, frames.MAX_CONCURRENT_STREAMS: 0},
            keepalive_seconds=keepalive_seconds,
            keepalive_timeout_seconds=patience,
        )
        self._fixed: Headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", authority),
            ("te", "trailers"),
            CONTENT_TYPE,
            ("user-agent", user_agent),
        )
        self._max_message_bytes = max_message_bytes
        self._next_id = 1
        self._blocks: dict[Headers, tuple[int, bytes]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._goes_away = False
        self.ended: asyncio.Future[str] = self.loop.create_future()
        """Why it takes no more calls."""
        self.greeted: asyncio.Future[None] = self.loop.create_future()
        """Somebody is there who speaks HTTP/2."""

    @property
    def takes_calls(self) -> bool:
        return self.transport is not None and not self._goes_away

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(frames.PREFACE)
        super().connection_made(transport)

    def begin(self, recurring: Headers, once: tuple[Header, ...], message: bytes) -> ClientCall:
        """Open a stream with its whole request; there must be room for it."""
        if not self.takes_calls:
            raise NotTaken(grpc.StatusCode.UNAVAILABLE, details="the connection has just ended")
        block = self._block(recurring) + b"".join(map(literal, once))
        call = ClientCall(self, self._next_id, max_bytes=self._max_message_bytes)
        self._next_id += 2
        if self._next_id > frames.MAX_STREAM_ID:
            self._leave("the connection has used up its numbers")
        self.open_stream(call)
        head = frames.header_frames(call.stream_id, block, end_stream=False, max_frame_bytes=self.peer_frame_bytes)
        data = message_bytes(message)
        if self.goes_at_once(call, len(data)):
            self.send_at_once(call, head, data, ends=True)
        else:
            self.send(head)
            self.send_in_turn(call, data, ends=True)
        if self._waiting:
            self._let_in()
        return call

    def _block(self, recurring: Headers) -> bytes:
        kept = self._blocks.get(recurring)
        if kept is not None and kept[0] == self.headers.generation:
            return kept[1]
        block = self.headers.write((*self._fixed, *recurring))
        # Written again, what was put into the table now is only pointed to.
        generation = self.headers.generation
        again = self.headers.write((*self._fixed, *recurring))
        if self.headers.generation == generation:
            if len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[recurring] = (generation, again)
        return block

    # Room for calls.

    def has_room(self) -> bool:
        return len(self.streams) < self.peer_max_streams

    async def room(self) -> None:
        """Wait until the server would take another call, or the connection takes none any more."""
        while self.takes_calls and not self.has_room():
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._let_in()  # it was our turn, which goes to the next one
                raise

    def done(self, call: ClientCall) -> None:
        self.close_stream(call)
        self._let_in()
        if self._goes_away and not self.streams and self.transport is not None:
            self.close("all calls are done")

    def on_settings(self) -> None:
        if not self.greeted.done():
            self.greeted.set_result(None)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self.has_room() or not self.takes_calls):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if self.takes_calls:
                    return  # the next one when this one has begun and there is still room

    # What the server says.

    def on_headers(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        call = self.streams.get(stream_id)
        if isinstance(call, ClientCall):
            call.on_headers(headers, ends=ends)
        elif stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "an answer to what nobody asked")

    def on_data(self, stream: Stream, data: bytes, *, ends: bool) -> None:
        assert isinstance(stream, ClientCall)  # noqa: S101 - there are no others here
        stream.on_data(data, ends=ends)

    def on_reset(self, stream: Stream, code: int) -> None:
        assert isinstance(stream, ClientCall)  # noqa: S101 - there are no others here
        stream.on_reset(code)

    def on_goaway(self, last_stream_id: int, code: int, reason: str) -> None:
        why = f"the server takes no more calls: {reason or code}"
        self._leave(why)
        for call in list(self.streams.values()):
            if isinstance(call, ClientCall) and call.stream_id > last_stream_id:
                call.not_taken(why)
        if not self.streams:
            self.close(why)

    def on_lost(self, reason: str) -> None:
        self._leave(reason)
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(reason))
            self.greeted.exception()  # whoever has connected may have given up
        for call in list(self.streams.values()):
            if isinstance(call, ClientCall):
                call.on_lost(reason)

    def leave_all(self, reason: str) -> None:
        """Give up all calls, and hang up."""
        for call in list(self.streams.values()):
            if isinstance(call, ClientCall):
                call.cancel()
        self.close(reason)

    def _leave(self, reason: str) -> None:
        self._goes_away = True
        if not self.ended.done():
            self.ended.set_result(reason)
        self._let_in()
