"""The server's end of a connection: which calls come, and who answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from noetl_contracts.http2 import frames
from noetl_contracts.http2.calls import headers_size
from noetl_contracts.http2.connection import Connection
from noetl_contracts.http2.frames import ConnectionBroken
from noetl_contracts.http2.header_blocks import Headers
from noetl_contracts.http2.streams import Stream

from noetl_servicekit.http2.served_call import ANSWER, OK, ServedCall

MAX_STREAMS: Final = 10_000
"""On one connection; how many calls a server takes is judged by its interceptor, which can say when to come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method that is served."""

    full_name: str
    behaviour: Callable[[Any, Any], Awaitable[Any]]
    streams_requests: bool
    streams_answers: bool
    deserialize: Callable[[bytes], Any] | None
    serialize: Callable[[Any], bytes] | None


class Served(Protocol):
    """What a connection knows of its server."""

    max_message_bytes: int
    max_metadata_bytes: int

    def route(self, path: str) -> Route | None: ...

    def opened(self, connection: ServerConnection) -> None: ...

    def gone(self, connection: ServerConnection) -> None: ...

    def stranger(self, full_name: str, exc: Exception) -> None: ...


class ServerConnection(Connection):
    """Takes calls until it is told to go away; those under way are finished."""

    def __init__(self, server: Served, *, keepalive_seconds: float, patience: float) -> None:
        super().__init__(
            settings={
                frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                frames.MAX_HEADER_LIST_SIZE: server.max_metadata_bytes,
            },
            keepalive_seconds=keepalive_seconds,
            keepalive_timeout_seconds=patience,
        )
        self._server = server
        self._greeting = b""
        self._greeted = False
        self._last_id = 0
        self.goes_away = False
        self._plain: tuple[int, bytes, bytes] = (-1, b"", b"")
        self._idle: asyncio.Future[None] | None = None
        self.calls: set[ServedCall] = set()
        """Somebody works on them, even if their caller has hung up."""
        self.peer = ""

    @property
    def max_message_bytes(self) -> int:
        return self._server.max_message_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        self.peer = f"ipv{6 if ':' in name[0] else 4}:{name[0]}:{name[1]}" if name else "unknown"
        self._server.opened(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.gone(self)

    def data_received(self, data: bytes) -> None:
        if not self._greeted:
            self._greeting += data
            if not frames.PREFACE.startswith(self._greeting[: len(frames.PREFACE)]):
                self.break_off(frames.PROTOCOL_ERROR, "this is a server of gRPC")
                return
            if len(self._greeting) < len(frames.PREFACE):
                return
            self._greeted, data, self._greeting = True, self._greeting[len(frames.PREFACE) :], b""
        super().data_received(data)

    def pause_writing(self) -> None:
        """Who does not read answers is asked no more questions. Clients always read, or both would wait for ever."""
        super().pause_writing()
        if self.transport is not None:
            self._deaf = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.transport is not None:
            self._deaf = False
            self.transport.resume_reading()
        super().resume_writing()

    # Calls.

    def on_headers(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        known = self.streams.get(stream_id)
        if isinstance(known, ServedCall):
            if not ends:
                raise ConnectionBroken(frames.PROTOCOL_ERROR, "headers in the middle of a request")
            known.on_request_end()
            return
        if stream_id % 2 == 0:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "clients have odd streams")
        if stream_id <= self._last_id:
            return  # it ended here, and the caller does not know yet
        if self.goes_away:
            return  # it was told where we stopped, and asks elsewhere
        self._last_id = stream_id
        if len(self.calls) >= MAX_STREAMS or len(self.streams) >= MAX_STREAMS:
            self.send(frames.reset_frame(stream_id, frames.REFUSED_STREAM))
            return
        self._begin(stream_id, headers, ends=ends)

    def _begin(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        named = dict(reversed(headers))  # of several with one name the first counts
        path = named.get(":path", "")
        route = self._server.route(path)
        call = ServedCall(self, stream_id, headers, named, route or _NOWHERE)
        self.open_stream(call)
        if route is None:
            call.refuse(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {path[:100]!r} here")
        elif headers_size(headers) > self._server.max_metadata_bytes:
            call.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "the metadata is larger than the server takes")
        elif not named.get("content-type", "").startswith("application/grpc"):
            call.refuse(grpc.StatusCode.INTERNAL, "the content type is none of gRPC")
        else:
            if route.streams_requests:
                call.start()
            if ends:
                call.on_request_end()

    def on_data(self, stream: Stream, data: bytes, *, ends: bool) -> None:
        assert isinstance(stream, ServedCall)  # noqa: S101 - there are no others here
        stream.on_data(data, ends=ends)

    def on_reset(self, stream: Stream, code: int) -> None:
        self._hang_up(stream)

    def on_goaway(self, last_stream_id: int, code: int, reason: str) -> None:
        """The client opens no more streams; those that it has go on."""

    def on_lost(self, reason: str) -> None:
        for stream in list(self.streams.values()):
            self._hang_up(stream)

    def _hang_up(self, stream: Stream) -> None:
        self.close_stream(stream)
        assert isinstance(stream, ServedCall)  # noqa: S101 - there are no others here
        stream.on_hang_up()

    def give_up(self, call: ServedCall, code: int) -> None:
        """Its caller does not keep to the protocol."""
        self.reset_stream(call, code)
        call.on_hang_up()

    def close_stream(self, stream: Stream) -> None:
        super().close_stream(stream)
        self._tell_if_idle()

    def working(self, call: ServedCall) -> None:
        self.calls.add(call)

    def over(self, call: ServedCall) -> None:
        self.calls.discard(call)
        self._tell_if_idle()

    async def idle(self) -> None:
        """Wait until nobody works here and every answer is on its way."""
        while self.calls or self.streams:
            if self._idle is None:
                self._idle = self.loop.create_future()
            await asyncio.shield(self._idle)

    def _tell_if_idle(self) -> None:
        if self._idle is not None and not self.calls and not self.streams:
            self._idle.set_result(None)
            self._idle = None

    def on_stranger(self, full_name: str, exc: Exception) -> None:
        self._server.stranger(full_name, exc)

    # Answers.

    def header_frames(self, stream_id: int, block: bytes, *, ends: bool) -> bytes:
        return frames.header_frames(stream_id, block, end_stream=ends, max_frame_bytes=self.peer_frame_bytes)

    def plain_answer(self, stream_id: int) -> tuple[bytes, bytes]:
        """Headers before and after one message, of a call that went well."""
        generation, head, tail = self._plain
        if generation != self.headers.generation:
            head, tail = self.headers.write(ANSWER), self.headers.write(OK)
            generation = self.headers.generation
            again = (generation, self.headers.write(ANSWER), self.headers.write(OK))
            if self.headers.generation == generation:  # written again, they only point into the table
                self._plain = again
        return (
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, head),
            frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, tail),
        )

    # The end.

    def last_stream_id(self) -> int:
        return self._last_id

    def go_away(self) -> None:
        """Take no more calls."""
        if not self.goes_away:
            self.goes_away = True
            self.send(frames.goaway_frame(self._last_id, frames.NO_ERROR, "the server is going away"))


async def _nowhere(request: Any, context: Any) -> None:
    raise AssertionError("a call of no method is refused before")


_NOWHERE: Final = Route(
    full_name="", behaviour=_nowhere, streams_requests=False, streams_answers=False, deserialize=None, serialize=None
)
