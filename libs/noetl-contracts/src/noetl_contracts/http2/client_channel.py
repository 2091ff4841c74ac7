"""A channel to one server: connects on first use, again when the connection is gone, and makes calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Final

import grpc
from grpc.aio import AioRpcError

from noetl_contracts.http2.calls import timeout_text
from noetl_contracts.http2.client_call import ClientCall, NotTaken, failure
from noetl_contracts.http2.client_connection import ClientConnection
from noetl_contracts.http2.header_blocks import Header, Headers
from noetl_contracts.http2.reaching import Address, addresses_of, first_to_answer

KEEPALIVE_SECONDS: Final = 20
KEEPALIVE_TIMEOUT_SECONDS: Final = 20
"""It is the other side's loop that answers, and it may have something long to do."""
_CONNECT_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0
_PAUSE_FACTOR: Final = 1.6
_USER_AGENT: Final = "noetl-http2"

_MAX_ATTEMPTS: Final = 4
_FIRST_BACKOFF_SECONDS: Final = 0.05
_LONGEST_BACKOFF_SECONDS: Final = 1.0
_BACKOFF_FACTOR: Final = 3
_MAX_NOT_TAKEN: Final = 5
_NOT_TAKEN_PAUSE_SECONDS: Final = 0.02


class Http2Channel:
    """Makes calls of whole requests; `retryable` ones again where the server was not there."""

    def __init__(
        self, host: str, port: int, *, authority: str, retryable: Collection[str], max_message_bytes: int
    ) -> None:
        self._host = host
        self._port = port
        self._authority = authority
        self._retryable = frozenset(retryable)
        self._max_message_bytes = max_message_bytes
        self._connection: ClientConnection | None = None
        self._connections: set[ClientConnection] = set()
        """That one, and those that only finish their calls."""
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._pause_seconds = 0.0
        self._next_try_at = 0.0
        self._failed: str | None = None
        self._closed = False
        self._state_waiters: list[asyncio.Future[None]] = []

    async def call(
        self,
        method: str,
        message: bytes,
        authorization: Headers,
        metadata: Headers,
        *,
        timeout: float,
        wait: bool = False,
    ) -> bytes:
        """The answer to one message; raises `AioRpcError`."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout
        attempt = 1
        while True:
            try:
                begun = await self.begin(method, message, authorization, metadata, ends_at=ends_at, wait=wait)
                timer = loop.call_at(ends_at, begun.expire)
                try:
                    await begun.over()
                finally:
                    timer.cancel()
                if begun.outcome is not True:
                    assert isinstance(begun.outcome, AioRpcError)  # noqa: S101 - it is over
                    raise begun.outcome
                if len(begun.messages) != 1:
                    raise failure(grpc.StatusCode.INTERNAL, f"{len(begun.messages)} answers instead of one")
                return begun.messages[0]
            except AioRpcError as exc:
                attempt = await self.before_next(method, exc, attempt=attempt, ends_at=ends_at)

    async def begin(
        self,
        method: str,
        message: bytes,
        authorization: Headers,
        metadata: Headers,
        *,
        ends_at: float | None,
        wait: bool = False,
    ) -> ClientCall:
        """Send a request."""
        if len(message) > self._max_message_bytes:
            raise failure(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"Sent message larger than max ({len(message)} vs. {self._max_message_bytes})",
            )
        connection = self._connection
        if connection is None or not connection.takes_calls or not connection.has_room():
            connection = await self._roomy_connection(ends_at, wait=wait)
        recurring: Headers = ((":path", method), *authorization)
        once: tuple[Header, ...] = metadata
        if ends_at is not None:
            text = timeout_text(max(ends_at - connection.loop.time(), 0.0))
            once = (("grpc-timeout", text), *metadata)
        return connection.begin(recurring, once, message)

    async def before_next(self, method: str, error: AioRpcError, *, attempt: int, ends_at: float | None) -> int:
        """Wait for the turn of the next attempt and say its number; raises the error if there is none."""
        loop = asyncio.get_running_loop()
        if isinstance(error, NotTaken):
            if attempt >= _MAX_NOT_TAKEN:
                raise error
            if attempt > 1:  # at once, and then a little later: it may be about to have room
                await asyncio.sleep(_NOT_TAKEN_PAUSE_SECONDS * attempt)
            return attempt + 1
        if (
            error.code() is not grpc.StatusCode.UNAVAILABLE
            or method not in self._retryable
            or attempt >= _MAX_ATTEMPTS
            or self._closed
        ):
            raise error
        pause = min(_FIRST_BACKOFF_SECONDS * _BACKOFF_FACTOR ** (attempt - 1), _LONGEST_BACKOFF_SECONDS)
        pause *= random.uniform(0.8, 1.2)  # noqa: S311 - so that many clients do not come at once
        if ends_at is not None and loop.time() + pause >= ends_at:
            raise error
        await asyncio.sleep(pause)
        return attempt + 1

    # Connections.

    async def _roomy_connection(self, ends_at: float | None, *, wait: bool) -> ClientConnection:
        try:
            async with asyncio.timeout_at(ends_at):
                while True:
                    connection = await self._connected(wait=wait)
                    if connection.has_room():
                        return connection
                    await connection.room()
        except TimeoutError:
            why = f"Deadline Exceeded while connecting to {self._authority}"
            raise failure(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"{why}: {self._failed}" if self._failed else why
            ) from None

    async def _connected(self, *, wait: bool) -> ClientConnection:
        loop = asyncio.get_running_loop()
        while True:
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            if self._connection is not None and self._connection.takes_calls:
                return self._connection
            pause = self._next_try_at - loop.time()
            if self._connecting is None and pause > 0:
                if not wait:
                    raise failure(grpc.StatusCode.UNAVAILABLE, str(self._failed))
                await asyncio.sleep(pause)
                continue
            task = self._connecting or self._start_connecting(loop)
            try:
                connection = await asyncio.shield(task)
                if connection.takes_calls:
                    return connection
                if not wait:  # it ended while we woke up
                    raise failure(grpc.StatusCode.UNAVAILABLE, f"{self._authority} hung up at once")
            except OSError as exc:
                if not wait:
                    raise failure(grpc.StatusCode.UNAVAILABLE, str(exc)) from None
            except asyncio.CancelledError:
                if not (task.cancelled() and self._closed):
                    raise  # it is the caller who was cancelled
                raise failure(grpc.StatusCode.CANCELLED, "the channel was closed") from None

    def _start_connecting(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[ClientConnection]:
        self._connecting = task = loop.create_task(self._connect())
        task.add_done_callback(self._on_connected)
        self._tell_state()
        return task

    async def _connect(self) -> ClientConnection:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await first_to_answer(await addresses_of(self._host, self._port), self._connect_to)
        except (OSError, TimeoutError) as exc:
            raise OSError(f"failed to connect to {self._authority}: {exc or type(exc).__name__}") from exc

    async def _connect_to(self, address: Address) -> ClientConnection:
        transport, connection = await asyncio.get_running_loop().create_connection(self._new_connection, *address)
        try:
            await asyncio.shield(connection.greeted)
        except BaseException:
            transport.abort()
            raise
        return connection

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(
            authority=self._authority,
            user_agent=_USER_AGENT,
            max_message_bytes=self._max_message_bytes,
            keepalive_seconds=KEEPALIVE_SECONDS,
            patience=KEEPALIVE_TIMEOUT_SECONDS,
        )

    def _on_connected(self, task: asyncio.Task[ClientConnection]) -> None:
        self._connecting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            connection = task.result()
            self._connections.add(connection)
            connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
            if self._closed:  # just before it was there
                connection.leave_all("the channel was closed")
                return
            self._connection, self._failed = connection, None
            self._pause_seconds = 0.0
            connection.ended.add_done_callback(lambda _: self._tell_state())
        else:
            self._failed = str(error)
            pause = max(self._pause_seconds * _PAUSE_FACTOR, _FIRST_PAUSE_SECONDS)
            self._pause_seconds = min(pause, _LONGEST_PAUSE_SECONDS)
            jitter = random.uniform(0.8, 1.0)  # noqa: S311 - so that many clients do not come at once
            self._next_try_at = task.get_loop().time() + self._pause_seconds * jitter
            task.get_loop().call_at(self._next_try_at, self._tell_state)
        self._tell_state()

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            connection.leave_all("the channel was closed")
        self._connection = None
        self._tell_state()

    # What the library's channels tell of themselves.

    def state(self, *, connect: bool = False) -> grpc.ChannelConnectivity:
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._connection is not None and self._connection.takes_calls:
            return grpc.ChannelConnectivity.READY
        if self._connecting is not None:
            return grpc.ChannelConnectivity.CONNECTING
        loop = asyncio.get_running_loop()
        if self._next_try_at > loop.time():
            return grpc.ChannelConnectivity.TRANSIENT_FAILURE
        if connect:
            self._start_connecting(loop)
        return grpc.ChannelConnectivity.IDLE

    async def state_changes(self, last: grpc.ChannelConnectivity) -> None:
        while self.state() is last:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._state_waiters.append(waiter)
            await waiter

    async def ready(self) -> None:
        await self._connected(wait=True)

    def _tell_state(self) -> None:
        waiters, self._state_waiters = self._state_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
