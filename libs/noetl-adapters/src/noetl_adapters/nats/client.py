"""One TCP connection to a server of NATS: what comes is handed over as it is read, what is sent is one write.

The client library stays for what is asked seldom (`jsm`). Each message passed through two queues and three tasks of
its own there, and its headers were read letter by letter: half of what a publisher and a consumer did.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

from nats.aio.client import Client, ServerVersion
from nats.errors import NoRespondersError
from nats.js.manager import JetStreamManager
from noetl_core.errors import Unavailable

from noetl_adapters.nats import frames

PING_SECONDS: Final = 5.0
MAX_UNANSWERED_PINGS: Final = 2
_HIGH_WATER_BYTES: Final = 1024 * 1024
_MAX_LINE_BYTES: Final = 64 * 1024
_DEFAULT_MAX_PAYLOAD: Final = 1024 * 1024
_NO_RESPONDERS: Final = "503"

Handle = Callable[[str, str, bytes, bytes], None]
"""Takes subject, where to answer, the block of headers and the body; must not wait, and must not raise."""


class Answer(NamedTuple):
    """To a request."""

    data: bytes


class NatsClient(asyncio.Protocol):
    """Ready once somebody has said who we are (`dialing`); gone for good when the connection is lost."""

    def __init__(self, *, on_error: Callable[[str], None]) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self.loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[Mapping[str, Any]] = self.loop.create_future()
        """What the server says of itself before anything else."""
        self.info: Mapping[str, Any] = {}
        self.address = ""
        self.refusal = ""
        """What the server has complained of since it last answered: the reason, if it hangs up."""
        self.lost = False
        self.room: asyncio.Future[None] | None = None
        """Done when the server has taken enough of what was sent; None while it keeps up."""
        self._on_error = on_error
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._parts: list[bytes] = []
        self._missing = 0
        self._numbers = count(1)
        self._inboxes = count()
        self._prefix = f"_INBOX.{uuid4().hex}"
        self._handlers: dict[int, Handle] = {}
        self._requests: set[asyncio.Future[tuple[bytes, bytes]]] = set()
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._unanswered_pings = 0
        self._timer: asyncio.TimerHandle | None = None

    # What users do.

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes."""
        return int(self.info.get("max_payload", _DEFAULT_MAX_PAYLOAD))

    @property
    def connected_server_version(self) -> ServerVersion:
        """Named as the library's manager asks for it."""
        return ServerVersion(str(self.info.get("version", "0.0.0-unknown")))

    def new_inbox(self) -> str:
        """A subject that nobody else has."""
        return f"{self._prefix}.{next(self._inboxes)}"

    def send(self, written: bytes) -> None:
        """Frames, any number of them; raises `Unavailable` if the connection is known to be lost."""
        if self.lost or self._transport is None:
            raise Unavailable("the connection to NATS was lost")
        self._transport.write(written)

    def publish(self, subject: str, body: bytes, *, reply: str = "") -> None:
        """One message without headers."""
        self.send(frames.publish(subject, body, reply))

    def subscribe(self, subject: str, handle: Handle) -> int:
        """Hear what comes under a subject, until `unsubscribe`; returns the number of the subscription."""
        number = next(self._numbers)
        self.send(frames.subscribe(subject, number))
        self._handlers[number] = handle
        return number

    def unsubscribe(self, number: int) -> None:
        """Hear nothing more, also of what is on its way."""
        self._handlers.pop(number, None)
        self.send(frames.unsubscribe(number))

    async def drain(self, number: int) -> None:
        """Unsubscribe, and hear what the server had sent by then."""
        self.send(frames.unsubscribe(number))
        try:
            await self.flush()
        finally:
            self._handlers.pop(number, None)

    async def flush(self) -> None:
        """Return when the server has dealt with everything that was sent to it before."""
        pong: asyncio.Future[None] = self.loop.create_future()
        self.send(frames.PING)
        self._pongs.append(pong)
        await pong

    async def request(self, subject: str, payload: bytes = b"", timeout: float = 2.0) -> Answer:
        """Ask and wait for the one answer; raises `TimeoutError`, and `NoRespondersError` if nobody listens.

        A connection that is lost meanwhile is `Unavailable` at once.
        """
        inbox = self.new_inbox()
        answer: asyncio.Future[tuple[bytes, bytes]] = self.loop.create_future()

        def handle(_subject: str, _reply: str, headers: bytes, body: bytes) -> None:
            if not answer.done():
                answer.set_result((headers, body))

        number = self.subscribe(inbox, handle)
        self._requests.add(answer)
        try:
            self.publish(subject, payload, reply=inbox)
            async with asyncio.timeout(timeout):
                headers, body = await answer
        finally:
            self._requests.discard(answer)
            if not self.lost:
                self.unsubscribe(number)
        if not body and frames.read_status(headers)[0] == _NO_RESPONDERS:
            raise NoRespondersError
        return Answer(body)

    def jsm(self, *, timeout: float = 2.0) -> JetStreamManager:
        """Streams and consumers as the library manages them: of a connection it needs `request` and the version."""
        return JetStreamManager(cast(Client, self), timeout=timeout)

    async def close(self, *, timeout_seconds: float) -> None:
        """Send what is left, and hang up."""
        if self._transport is None:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self._transport.abort()

    async def introduce(self, options: Mapping[str, Any], *, transport: asyncio.Transport) -> None:
        """Say who we are, perhaps over a transport that is safer than the first; raises if the server minds."""
        self._transport = transport
        self.send(frames.connect(options))
        await self.flush()
        self._timer = self.loop.call_later(PING_SECONDS, self._look)

    # The protocol of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # libuv's is one by its methods only
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self.refusal or (str(exc) if exc is not None else "") or "the server closed the connection"
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        waits: list[asyncio.Future[Any]] = [self.greeted, *self._pongs, *self._requests]
        for waiting in waits:
            if not waiting.done():
                waiting.set_exception(Unavailable(f"NATS is away: {reason}"))
                waiting.exception()  # perhaps nobody waits for it any more
        self._pongs.clear()
        if not self._gone.done():
            self._gone.set_result(None)
        self.on_lost()

    def pause_writing(self) -> None:
        if self.room is None:
            self.room = self.loop.create_future()

    def resume_writing(self) -> None:
        room, self.room = self.room, None
        if room is not None and not room.done():
            room.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._parts:
            # A large message comes in many pieces, which are put together once.
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts = []
        try:
            at = self._read(data)
        except (ValueError, IndexError) as exc:
            self._give_up(f"the server sent what is not NATS: {exc}")
            return
        if at < len(data):
            self._parts = [data[at:]]

    def _read(self, data: bytes) -> int:
        """Hand over what is whole; returns where the rest begins, and notes how much of it is missing at least."""
        at, size = 0, len(data)
        while at < size:
            end = data.find(b"\r\n", at)
            if end < 0:
                if size - at > _MAX_LINE_BYTES:
                    raise ValueError("a line without an end")
                self._missing = 1
                return at
            words = data[at:end].decode().split(" ")
            word = words[0]
            if word in ("HMSG", "MSG"):
                begins = end + 2
                ends = begins + int(words[-1])
                if ends < begins:
                    raise ValueError("a message of less than nothing")  # reading on before it would never end
                if ends + 2 > size:
                    self._missing = ends + 2 - size
                    return at
                at = ends + 2
                handle = self._handlers.get(int(words[2]))
                if handle is not None:
                    if word == "MSG":
                        handle(words[1], words[3] if len(words) == 5 else "", b"", data[begins:ends])
                    else:
                        headed = begins + int(words[-2])
                        reply = words[3] if len(words) == 6 else ""
                        handle(words[1], reply, data[begins:headed], data[headed:ends])
            else:
                self._control(word, data[at:end])
                at = end + 2
        return at

    def _control(self, word: str, line: bytes) -> None:
        if word == "PING":
            if not self.lost:
                self.send(frames.PONG)
        elif word == "PONG":
            self._unanswered_pings = 0
            self.refusal = ""
            if self._pongs:
                pong = self._pongs.popleft()
                if not pong.done():
                    pong.set_result(None)
        elif word == "INFO":
            self.info = json.loads(line[5:])
            if not self.greeted.done():
                self.greeted.set_result(self.info)
        elif word == "-ERR":
            self.refusal = line[5:].decode("utf-8", "replace").strip("' ")
            self._on_error(self.refusal)  # the server hangs up itself if it is serious
        elif word != "+OK":
            raise ValueError(f"{line[:40]!r}")

    def _look(self) -> None:
        """A peer that vanished without a word is noticed only by asking."""
        if self._unanswered_pings >= MAX_UNANSWERED_PINGS:
            self._give_up("the server does not answer any more")
            return
        self._unanswered_pings += 1
        # Nobody waits for this one; it keeps the places of those that somebody waits for.
        self._pongs.append(self.loop.create_future())
        self.send(frames.PING)
        self._timer = self.loop.call_later(PING_SECONDS, self._look)

    def _give_up(self, reason: str) -> None:
        self.refusal = reason
        self._on_error(reason)
        if self._transport is not None:
            self._transport.abort()
