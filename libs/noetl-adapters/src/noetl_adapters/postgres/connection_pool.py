"""Connections to one database, so many at most: lent and given back without a task or a timer for each use.

The driver's own pool shields every return with a task of its own and a limit of time, in case that it is cancelled just
then. Sessions of ours keep nothing that would have to be reset, so a use that ended by itself gives back by putting the
connection on a list. Only one that was cancelled, or ended in a transaction, leaves something to wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Protocol, Self

import asyncpg

Connection = Any
"""A connection of asyncpg, which has no types."""

IDLE_SECONDS: Final = 300.0
"""After which a connection that nobody needs is closed, when another one is given back, and none is lent any more.

Networks forget connections that are silent for some minutes, without a word: a use would wait in vain for its limit.
"""
SETTLE_SECONDS: Final = 5.0
"""How long a cancelled query may take to end on the server: as long as any transaction there may last."""


class Connections(Protocol):
    """Whoever lends connections: any of many, or always the one whose transaction is open."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        """`async with` gives a connection."""
        ...

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Rows of one statement."""
        ...


class OneConnection:
    """Lends a connection that somebody has: what is done with it is part of the transaction that is open on it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        """Always the same."""
        return nullcontext(self._connection)

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._connection.fetch(query, *arguments)
        return rows


class ConnectionPool:
    """A connection has one user at a time. Who waits for one is served in turn."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        max_size: int,
        min_size: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._max_size = max_size
        self._min_size = min_size
        self._clock = clock
        self._size = 0
        """Of those that are open or being opened."""
        self._idle: deque[tuple[Connection, float]] = deque()
        """With the time since when. The last one is taken first, so that those that are not needed stay idle."""
        self._lent: set[Connection] = set()
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._settling: set[asyncio.Task[None]] = set()
        self._all_back = asyncio.Event()
        self._all_back.set()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        """It may have been opened before; if not, connections are made when they are needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect as often as there are always connections; raises what the driver raises."""
        for _ in range(self._min_size):
            self._size += 1
            try:
                self._idle.append((await self._connect(), self._clock()))
            except BaseException:
                self._size -= 1
                self.terminate()
                raise

    def acquire(self) -> LentConnection:
        """`async with` gives a connection; raises what the driver raises."""
        return LentConnection(self)

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self.acquire() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
            return rows

    async def fetchrow(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        async with self.acquire() as connection:
            return await connection.fetchrow(query, *arguments)

    async def fetchval(self, query: str, *arguments: Any) -> Any:
        async with self.acquire() as connection:
            return await connection.fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: Any) -> str:
        async with self.acquire() as connection:
            tag: str = await connection.execute(query, *arguments)
            return tag

    @property
    def size(self) -> int:
        """How many connections there are."""
        return self._size

    @property
    def idle_size(self) -> int:
        """How many of them nobody uses."""
        return len(self._idle)

    async def close(self) -> None:
        """When all have been given back; who waits for one is sent away. Given up half-way, it ends those in use."""
        self._send_away()
        try:
            while self._lent:  # one that was given back may have gone to somebody who was waiting
                await self._all_back.wait()
            while self._idle:
                connection, _ = self._idle.pop()
                self._size -= 1
                await connection.close()
        except BaseException:
            self.terminate()
            raise

    def terminate(self) -> None:
        """At once, also those that are in use."""
        self._send_away()
        for connection in (*self._lent, *(connection for connection, _ in self._idle)):
            connection.terminate()
        self._size -= len(self._idle)
        self._idle.clear()

    async def take(self) -> Connection:
        """For `LentConnection`."""
        while True:
            if self._is_closing:
                raise asyncpg.InterfaceError("the pool is closing")
            connection = None if self._waiting else self._idle_one()
            if connection is None:
                connection = await (self._opened() if self._size < self._max_size else self._given_back())
            if connection is not None:
                self._lend(connection)
                return connection

    def give_back(self, connection: Connection, error: BaseException | None) -> Coroutine[Any, Any, None] | None:
        """For `LentConnection`: done at once, or what is still to be waited for."""
        # The driver remembers a transaction that was cancelled before it began; each one after it would be a savepoint.
        if connection.is_closed() or connection._top_xact is not None:
            self._drop(connection)
        elif connection.is_in_transaction() or not (error is None or isinstance(error, asyncpg.PostgresError)):
            task = asyncio.ensure_future(self._settle(connection))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
            return _shielded(task)
        else:
            self._put_back(connection)
        return None

    async def _settle(self, connection: Connection) -> None:
        """The server may have to be told first to stop, whatever becomes of who has asked: then it is as it was."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                if not connection.is_in_transaction():
                    await connection.execute("SELECT")
                if connection.is_in_transaction():  # perhaps one that had begun all the same
                    await connection.execute("ROLLBACK")
        except BaseException:
            self._drop(connection)
            raise
        self._put_back(connection)

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if self._clock() - since <= IDLE_SECONDS and not connection.is_closed():
                return connection
            self._size -= 1
            connection.terminate()
        return None

    def _send_away(self) -> None:
        self._is_closing = True
        while self._wake_next(None):
            pass

    async def _opened(self) -> Connection | None:
        """None if the pool was closed meanwhile, which then knows nothing of this connection."""
        self._size += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._size -= 1
            self._wake_next(None)
            raise
        if self._is_closing:
            self._size -= 1
            connection.terminate()
            return None
        return connection

    async def _given_back(self) -> Connection | None:
        """None if the connection was lost: there is room for another one then."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except BaseException:
            if not waiter.done() or waiter.cancelled():
                self._waiting = deque(other for other in self._waiting if other is not waiter)
            elif (connection := waiter.result()) is None:
                self._wake_next(None)
            else:
                self._put_back(connection)
            raise

    def _put_back(self, connection: Connection) -> None:
        self._forget(connection)
        if self._wake_next(connection):
            return
        now = self._clock()
        self._idle.append((connection, now))
        if self._size > self._min_size and now - self._idle[0][1] > IDLE_SECONDS:
            unused, _ = self._idle.popleft()
            self._size -= 1
            unused.terminate()

    def _drop(self, connection: Connection) -> None:
        self._forget(connection)
        self._size -= 1
        connection.terminate()
        self._wake_next(None)

    def _lend(self, connection: Connection) -> None:
        self._lent.add(connection)
        self._all_back.clear()

    def _forget(self, connection: Connection) -> None:
        self._lent.discard(connection)
        if not self._lent:
            self._all_back.set()

    def _wake_next(self, connection: Connection | None) -> bool:
        """Whoever has waited longest gets it, or is told that there is room to open one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                if connection is not None:
                    self._lend(connection)
                waiter.set_result(connection)
                return True
        return False


class LentConnection:
    """A connection while somebody has it. No generator, which would cost every use more than the pool does."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def __aenter__(self) -> Connection:
        self._connection = await self._pool.take()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        settling = self._pool.give_back(self._connection, error)
        if settling is not None:
            await settling


async def _shielded(task: asyncio.Task[None]) -> None:
    """Whoever gives back may be cancelled; the return goes on. How it ends is nobody's concern but the pool's."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
