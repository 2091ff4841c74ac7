"""A connection of HTTP/2 as both sides have it: frames in and out, windows, pings, and what the other side broke."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final, cast

from noetl_contracts.http2 import frames
from noetl_contracts.http2.frames import ConnectionBroken
from noetl_contracts.http2.header_blocks import HeaderReader, Headers, HeaderWriter
from noetl_contracts.http2.streams import Stream

STREAM_WINDOW_BYTES: Final = 1024 * 1024
CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
FRAME_BYTES: Final = 256 * 1024
"""The largest frame that we take; a message of usual size is one frame."""
MAX_BLOCK_BYTES: Final = 64 * 1024
_MAX_CONTINUATIONS: Final = 64
_HIGH_WATER_BYTES: Final = 256 * 1024
_PING_PAYLOAD: Final = b"noetl-ok"
_LATE_SECONDS: Final = 1.0
_FLUSH_SECONDS: Final = 2.0


class Connection(asyncio.Protocol):
    """Reads frames and knows what may be sent. Its sides say what streams are, and what headers and data mean."""

    def __init__(
        self, *, settings: Mapping[int, int], keepalive_seconds: float, keepalive_timeout_seconds: float
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._last_transport: asyncio.Transport | None = None
        self.headers = HeaderWriter()
        self.streams: dict[int, Stream] = {}
        self.peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self.peer_max_streams = frames.MAX_STREAM_ID
        self._peer_window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._settings = settings
        self._reader = HeaderReader()
        self._buffer = b""
        self._send_window = frames.DEFAULT_WINDOW_BYTES
        self._blocked: dict[int, Stream] = {}
        self._unacknowledged = 0
        self._paused = False
        self._open_block: tuple[int, int, list[bytes]] | None = None
        self._has_settings = False
        self._keepalive = (keepalive_seconds, keepalive_timeout_seconds)
        self._heard_at = self.loop.time()
        self._pinged_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = 0.0
        self._deaf = False

    # What the sides do.

    @abstractmethod
    def on_headers(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        """A whole header block has come."""

    @abstractmethod
    def on_data(self, stream: Stream, data: bytes, *, ends: bool) -> None:
        """Data of a stream that is open, as far as we know."""

    @abstractmethod
    def on_reset(self, stream: Stream, code: int) -> None:
        """The other side gave a stream up."""

    @abstractmethod
    def on_goaway(self, last_stream_id: int, code: int, reason: str) -> None:
        """The other side takes no more streams."""

    @abstractmethod
    def on_lost(self, reason: str) -> None:
        """The connection is gone, and all that was on it."""

    def on_settings(self) -> None:
        """What the other side allows has changed."""

    # The protocol of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._last_transport = transport = cast(
            asyncio.Transport, transport
        )  # libuv's is one by its methods only
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._heard_at = self.loop.time()
        self.send(
            frames.settings_frame(
                {
                    **self._settings,
                    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                    frames.MAX_FRAME_SIZE: FRAME_BYTES,
                }
            )
            + frames.window_frame(0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES)
        )
        self._look_in(self._keepalive[0])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._end(f"the connection was lost: {exc}" if exc else "the other side closed the connection")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        try:
            self._read(self._buffer + data if self._buffer else data)
        except ConnectionBroken as exc:
            self.break_off(exc.code, exc.reason)

    # Reading.

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        while end - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > FRAME_BYTES:
                raise ConnectionBroken(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + frames.HEAD_BYTES
            if end - start < length:
                break
            at = start + length
            self._on_frame(kind, flags, stream_id & frames.MAX_STREAM_ID, data[start:at])
            if self.transport is None:
                return  # it ended while it was read
        self._buffer = data[at:] if at else data

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._open_block is not None and kind != frames.CONTINUATION:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "another frame stands within a header block")
        if not self._has_settings and kind != frames.SETTINGS:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "settings must come first")
        if kind == frames.DATA:
            self._on_data(flags, stream_id, payload)
        elif kind == frames.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._on_reset(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.PING:
            if len(payload) != 8:
                raise ConnectionBroken(frames.FRAME_SIZE_ERROR, "a ping has eight bytes")
            if not flags & frames.ACK:
                self.send(frames.ping_frame(payload, ack=True))
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, stream_id, payload)
        elif kind == frames.GOAWAY:
            if len(payload) < 8:
                raise ConnectionBroken(frames.FRAME_SIZE_ERROR, "a short goaway")
            last, code = frames.NUMBER.unpack_from(payload)[0], frames.NUMBER.unpack_from(payload, 4)[0]
            self.on_goaway(last & frames.MAX_STREAM_ID, code, payload[8:].decode("utf-8", "replace"))
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "nobody asked for a push")
        # Priorities say nothing to us, and kinds that we do not know are to be passed over.

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "data of no stream")
        size = len(payload)
        self._unacknowledged += size
        if self._unacknowledged > CONNECTION_WINDOW_BYTES:
            raise ConnectionBroken(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if self._unacknowledged >= CONNECTION_WINDOW_BYTES // 2:
            self.send(frames.window_frame(0, self._unacknowledged))
            self._unacknowledged = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            return  # it ended here, and the other side does not know yet
        stream.receive_left -= size
        if stream.receive_left < 0:
            raise ConnectionBroken(frames.FLOW_CONTROL_ERROR, "more data than the stream's window")
        data = frames.without_padding(payload) if flags & frames.PADDED else payload
        self.on_data(stream, data, ends=bool(flags & frames.END_STREAM))

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "headers of no stream")
        if flags & frames.PADDED:
            payload = frames.without_padding(payload)
        if flags & frames.WITH_PRIORITY:
            payload = payload[5:]
        if len(payload) > MAX_BLOCK_BYTES:
            raise ConnectionBroken(frames.ENHANCE_YOUR_CALM, "a header block that is too large")
        if flags & frames.END_HEADERS:
            self.on_headers(stream_id, self._reader.read(payload), ends=bool(flags & frames.END_STREAM))
        else:
            self._open_block = (stream_id, flags, [payload])

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._open_block is None or self._open_block[0] != stream_id:
            raise ConnectionBroken(frames.PROTOCOL_ERROR, "a header block goes on that has not begun")
        _, first_flags, parts = self._open_block
        parts.append(payload)
        if len(parts) > _MAX_CONTINUATIONS or sum(map(len, parts)) > MAX_BLOCK_BYTES:
            raise ConnectionBroken(frames.ENHANCE_YOUR_CALM, "a header block without an end")
        if flags & frames.END_HEADERS:
            self._open_block = None
            headers = self._reader.read(b"".join(parts))
            self.on_headers(stream_id, headers, ends=bool(first_flags & frames.END_STREAM))

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBroken(frames.FRAME_SIZE_ERROR, "a reset has four bytes")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.on_reset(stream, frames.NUMBER.unpack(payload)[0])

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBroken(frames.FRAME_SIZE_ERROR, "a window update has four bytes")
        increment = frames.NUMBER.unpack(payload)[0] & frames.MAX_STREAM_ID
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > frames.MAX_WINDOW_BYTES:
                raise ConnectionBroken(frames.FLOW_CONTROL_ERROR, "a window out of bounds")
            self._flush()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.send_window += increment
        if not increment or stream.send_window > frames.MAX_WINDOW_BYTES:
            raise ConnectionBroken(frames.FLOW_CONTROL_ERROR, "a window out of bounds")
        if stream_id in self._blocked:
            self._flush_stream(stream)

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        self._has_settings = True
        for name, value in frames.read_settings(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW_BYTES:
                    raise ConnectionBroken(frames.FLOW_CONTROL_ERROR, "a window out of bounds")
                for stream in self.streams.values():
                    stream.send_window += value - self._peer_window_bytes
                self._peer_window_bytes = value
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value < 2**24:
                    raise ConnectionBroken(frames.PROTOCOL_ERROR, "a size of frames out of bounds")
                self.peer_frame_bytes = value
            elif name == frames.HEADER_TABLE_SIZE:
                self.headers.limit_table(value)
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
        self.send(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self.on_settings()
        self._flush()

    # Writing.

    def send(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def open_stream(self, stream: Stream) -> None:
        stream.send_window = self._peer_window_bytes
        stream.receive_left = STREAM_WINDOW_BYTES
        self.streams[stream.stream_id] = stream

    def close_stream(self, stream: Stream) -> None:
        """Nothing more is sent or taken."""
        self.streams.pop(stream.stream_id, None)
        self._blocked.pop(stream.stream_id, None)
        stream.drop_unsent()

    def reset_stream(self, stream: Stream, code: int) -> None:
        if stream.stream_id in self.streams:
            self.close_stream(stream)
            self.send(frames.reset_frame(stream.stream_id, code))

    def goes_at_once(self, stream: Stream, size: int) -> bool:
        """Whether a message of so many bytes need not wait for anything."""
        return (
            size <= self._send_window
            and size <= stream.send_window
            and size <= self.peer_frame_bytes
            and not self._paused
            and not stream.unsent
        )

    def send_at_once(self, stream: Stream, head: bytes, data: bytes, tail: bytes = b"", *, ends: bool = False) -> None:
        """Headers, a message and what follows it in one piece, where `goes_at_once`."""
        size = len(data)
        self._send_window -= size
        stream.send_window -= size
        flags = frames.END_STREAM if ends else 0
        self.send(b"".join((head, frames.frame_head(size, frames.DATA, flags, stream.stream_id), data, tail)))

    def send_in_turn(self, stream: Stream, data: bytes, tail: bytes = b"", *, ends: bool = False) -> None:
        """A message and what follows it, as windows and the socket allow.

        Headers in `tail` are literals: by the time they go the table of headers may be another one.
        """
        stream.keep_unsent(data, tail=tail, ends=ends)
        self._blocked[stream.stream_id] = stream
        self._flush_stream(stream)

    def _flush(self) -> None:
        """Send what windows allow now, a frame of each stream in turn, so that none keeps the others waiting."""
        moved = True
        while moved and self._blocked:
            moved = False
            for stream in list(self._blocked.values()):
                if not self._may_send():
                    return
                moved = self._send_part(stream) or moved

    def _flush_stream(self, stream: Stream) -> None:
        """The same of one stream: that of others has not changed."""
        while stream.unsent and self._may_send() and self._send_part(stream):
            pass

    def _may_send(self) -> bool:
        return not self._paused and self.transport is not None

    def _send_part(self, stream: Stream) -> bool:
        part = stream.next_part(min(self._send_window, stream.send_window, self.peer_frame_bytes))
        if part is None:
            return False
        size, data = part
        self._send_window -= size
        stream.send_window -= size
        self.send(data)
        if not stream.unsent:
            self._blocked.pop(stream.stream_id, None)
            stream.on_sent()
        return True

    async def sent(self, stream: Stream) -> None:
        """Wait until all of a stream's data is on its way."""
        while stream.unsent and stream.stream_id in self.streams:
            await stream.until_sent(self.loop)

    def acknowledge(self, stream: Stream, *, held_bytes: int) -> None:
        """Let more of a stream come, unless much of it waits here to be taken."""
        if stream.receive_left <= STREAM_WINDOW_BYTES // 2 and held_bytes < STREAM_WINDOW_BYTES:
            self.send(frames.window_frame(stream.stream_id, STREAM_WINDOW_BYTES - stream.receive_left))
            stream.receive_left = STREAM_WINDOW_BYTES

    # Its end.

    def break_off(self, code: int, reason: str) -> None:
        """Tell why, and hang up."""
        if self.transport is not None:
            self.send(frames.goaway_frame(self.last_stream_id(), code, reason))
        self.close(reason)

    def last_stream_id(self) -> int:
        return 0

    def close(self, reason: str) -> None:
        """What was written is still sent, to whoever reads it; nothing else is."""
        transport = self.transport
        self._end(reason)
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                self.loop.call_later(_FLUSH_SECONDS, transport.abort)

    def _end(self, reason: str) -> None:
        if self.transport is None:
            return
        self.transport = None
        self._buffer = b""
        if self._timer is not None:
            self._timer.cancel()
        self.on_lost(reason)
        for stream in list(self.streams.values()):
            self.close_stream(stream)

    def _look_in(self, seconds: float) -> None:
        self._looks_at = self.loop.time() + seconds
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Somebody who says nothing is asked, and left if there is no answer."""
        every, patience = self._keepalive
        now = self.loop.time()
        silent = now - self._heard_at
        if self._deaf:  # what it says is not read now; whether it reads is for deadlines to judge
            self._look_in(every)
        elif self._pinged_at is not None and self._heard_at < self._pinged_at:
            if now - self._looks_at > _LATE_SECONDS:  # it was us who stood still: the answer may be here, unread
                self._look_in(patience)
            else:
                self.abort(f"nothing was heard for {silent:.0f} s")
        elif silent >= every:
            self._pinged_at = now
            self.send(frames.ping_frame(_PING_PAYLOAD))
            self._look_in(patience)
        else:
            self._pinged_at = None
            self._look_in(every - silent)

    def abort(self, reason: str) -> None:
        """Hang up at once: the other side does not read."""
        transport = self._last_transport
        self._end(reason)
        if transport is not None:
            transport.abort()
