"""One connection to NATS that is made again for ever; each TCP connection is a session of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from types import TracebackType

import nats.errors
from noetl_core.errors import NoetlError, Unavailable

from noetl_adapters.nats.client import NatsClient
from noetl_adapters.nats.dialing import dial

CLOSE_TIMEOUT_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 2.0
BEAT_SECONDS = 2.0


class NatsEvent(StrEnum):
    """What a connection reports."""

    CONNECTED = "nats.connected"
    DISCONNECTED = "nats.disconnected"
    ERROR = "nats.error"


Report = Callable[[NatsEvent, str], None]
Receive = Callable[[bytes], Awaitable[None]]


class NatsSession:
    """One TCP connection. When it is lost, so is everything that was only written to it."""

    def __init__(self, client: NatsClient) -> None:
        self.client = client
        self.lost = asyncio.Event()
        self.listeners: set[Callable[[], None]] = set()
        """Told of the loss, since they wait for other things too; whoever joins looks first whether it is lost."""

    def lose(self) -> None:
        """It is lost; harmless the second time."""
        self.lost.set()
        for tell in tuple(self.listeners):
            tell()


class NatsConnection:
    """Connects in the background, so that a process can start, and go on, while NATS is away.

    Nothing of a lost connection is sent over the next one: after what the last one had lost it would reorder a batch.
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
        self._heard: deque[tuple[Receive, bytes]] = deque()
        self._news = asyncio.Event()
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
            with suppress(Unavailable):  # then the session is lost, and the next one will do it
                self._listen(self._session.client, subject, receive)

    async def run(self, beat: Callable[[], None]) -> None:
        """Stay connected for ever, or on the way to it; broadcasts are dealt with here, one after the other."""
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            beat()
            session = await self._open()
            if session is not None:
                retry_seconds = FIRST_RETRY_SECONDS
                try:
                    await self._until_lost(session, beat)
                    self._report(NatsEvent.DISCONNECTED, self._name)
                finally:
                    self._session = None
                    session.lose()
                    await session.client.close(timeout_seconds=CLOSE_TIMEOUT_SECONDS)
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    async def _open(self) -> NatsSession | None:
        try:
            client = await dial(self._servers, name=self._name, token=self._token, on_error=self._failed)
            session = NatsSession(client)
            client.on_lost = session.lose
            for subject, receive in self._broadcasts:
                self._listen(client, subject, receive)
        except Exception as exc:  # whatever it is: a connection that gives up would take the process with it
            self._failed(str(exc) or type(exc).__name__)
            return None
        self._session = session
        self._connected.set()
        self._report(NatsEvent.CONNECTED, client.address)
        return session

    def _failed(self, reason: str) -> None:
        self._report(NatsEvent.ERROR, reason)

    def _listen(self, client: NatsClient, subject: str, receive: Receive) -> None:
        def handle(_subject: str, _reply: str, _headers: bytes, body: bytes) -> None:
            self._heard.append((receive, body))
            self._news.set()

        client.subscribe(subject, handle)

    async def _until_lost(self, session: NatsSession, beat: Callable[[], None]) -> None:
        session.listeners.add(self._news.set)
        while not (session.lost.is_set() or session.client.lost):
            beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._news.wait()
            self._news.clear()
            while self._heard:
                receive, body = self._heard.popleft()
                try:
                    await receive(body)
                except Exception as exc:  # of one message, which must not cost the connection
                    self._failed(f"{type(exc).__name__}: {exc}")


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Client errors end here: whatever NATS could not do now, it may do later."""
    try:
        yield
    except NoetlError:
        raise
    except (nats.errors.Error, OSError, TimeoutError) as exc:
        raise Unavailable(f"NATS is away: {exc or type(exc).__name__}") from exc
