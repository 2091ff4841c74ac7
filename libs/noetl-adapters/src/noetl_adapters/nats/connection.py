"""One connection to NATS that is made again for ever; each TCP connection is a session of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from types import TracebackType

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from noetl_core.errors import NoetlError, Unavailable

CONNECT_TIMEOUT_SECONDS = 2
CLOSE_TIMEOUT_SECONDS = 2.0
PING_SECONDS = 5
MAX_UNANSWERED_PINGS = 2
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 2.0
CLOSED_CHECK_SECONDS = 0.5


class NatsEvent(StrEnum):
    """What a connection reports."""

    CONNECTED = "nats.connected"
    DISCONNECTED = "nats.disconnected"
    ERROR = "nats.error"


Report = Callable[[NatsEvent, str], None]
Receive = Callable[[bytes], Awaitable[None]]


class NatsSession:
    """One TCP connection. When it is lost, so is everything that was only written to it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lost = asyncio.Event()
        self._listeners: set[Callable[[], None]] = set()

    @contextmanager
    def telling_of_loss(self, tell: Callable[[], None]) -> Iterator[None]:
        """Have somebody told who waits for other things too; at once, if it is lost already."""
        self._listeners.add(tell)
        try:
            if self.lost.is_set():
                tell()
            yield
        finally:
            self._listeners.discard(tell)

    def lose(self) -> None:
        """It is lost; harmless the second time."""
        self.lost.set()
        for tell in tuple(self._listeners):
            tell()


class NatsConnection:
    """Connects in the background, so that a process can start, and go on, while NATS is away.

    The client's own reconnection is off: it would send what was left in its buffers over the next connection,
    after what the last one had lost, and so reorder a batch; and it ends for good on some server errors.
    """

    def __init__(
        self, servers: str, *, name: str, token: str | None = None, report: Report = lambda event, detail: None
    ) -> None:
        """`servers` is one address or several with commas; a token may also be the user of an address."""
        self._servers = [server.strip() for server in servers.split(",")]
        self._name = name
        self._token = token
        self._report = report
        self._session: NatsSession | None = None
        self._connected = asyncio.Event()
        self._broadcasts: list[tuple[str, Receive]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> NatsConnection:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to connect; returns at once. A service has `run` supervised instead."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(lambda: None), name="nats-connection")

    async def close(self) -> None:
        """Leave NATS; the connection cannot be used again."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @property
    def connected(self) -> bool:
        """Whether there is a session, as far as known at this moment."""
        return self._session is not None and not self._session.lost.is_set()

    def session(self) -> NatsSession:
        """The session to use now; raises `Unavailable` while there is none."""
        session = self._session
        if session is None or session.lost.is_set():
            raise Unavailable("NATS is away")
        return session

    async def wait_connected(self, *, timeout_seconds: float) -> NatsSession:
        """The session, waited for; raises `Unavailable` when the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self.connected:
                    self._connected.clear()
                    await self._connected.wait()
        except TimeoutError as exc:
            raise Unavailable(f"NATS did not answer within {timeout_seconds:g} s") from exc
        return self.session()

    async def subscribe(self, subject: str, receive: Receive) -> None:
        """Hear what is published from now on, in every session to come; what is sent in between is missed."""
        self._broadcasts.append((subject, receive))
        if self._session is not None:
            with suppress(nats.errors.Error, OSError):  # then the session is lost, and the next one will do it
                await _subscribe(self._session.client, subject, receive)

    async def run(self, beat: Callable[[], None]) -> None:
        """Stay connected for ever, or on the way to it."""
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            beat()
            session = NatsSession(Client())
            try:
                if await self._open(session):
                    retry_seconds = FIRST_RETRY_SECONDS
                    await _until_lost(session, beat)
                    self._report(NatsEvent.DISCONNECTED, self._name)
            finally:
                self._session = None
                session.lose()
                await _close(session.client)
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    async def _open(self, session: NatsSession) -> bool:
        async def lost() -> None:
            session.lose()

        async def failed(error: Exception) -> None:
            self._report(NatsEvent.ERROR, str(error) or type(error).__name__)

        client = session.client
        try:
            await client.connect(
                servers=list(self._servers),
                name=self._name,
                token=self._token,
                error_cb=failed,
                disconnected_cb=lost,
                closed_cb=lost,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=MAX_UNANSWERED_PINGS,
            )
            for subject, receive in self._broadcasts:
                await _subscribe(client, subject, receive)
        except Exception as exc:  # whatever it is: a connection that gives up would take the process with it
            await failed(exc)
            return False
        self._session = session
        self._connected.set()
        self._report(
            NatsEvent.CONNECTED, client.connected_url.netloc.rpartition("@")[2] if client.connected_url else ""
        )
        return True


async def _until_lost(session: NatsSession, beat: Callable[[], None]) -> None:
    """The client says when it loses its connection, except when closing it fails half-way."""
    while not session.lost.is_set():
        beat()
        with suppress(TimeoutError):
            await asyncio.wait_for(session.lost.wait(), CLOSED_CHECK_SECONDS)
        if session.client.is_closed:
            session.lose()


async def _close(client: Client) -> None:
    # A broken socket may refuse what is still to be flushed, and the library stumble over that; it is gone either way.
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await client.close()


async def _subscribe(client: Client, subject: str, receive: Receive) -> None:
    async def hand_over(message: Msg) -> None:
        await receive(message.data)

    await client.subscribe(subject, cb=hand_over)


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Client errors end here: whatever NATS could not do now, it may do later."""
    try:
        yield
    except NoetlError:
        raise
    except (nats.errors.Error, OSError, TimeoutError) as exc:
        raise Unavailable(f"NATS is away: {exc or type(exc).__name__}") from exc
