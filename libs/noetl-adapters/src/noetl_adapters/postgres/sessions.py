"""Connections to the database, so many at most, taken and given back without a task or a timer for each call.

The driver's own pool makes both, so that limits of time and cancellation hold at any moment. Nobody needs them where a
connection is idle, or where a statement has ended by itself: that was a sixth of what a publisher did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

Connection = Any
"""A connection of asyncpg, which has no types."""

_CLOSE_SECONDS: Final = 5.0


class PostgresSessions:
    """A connection has one user at a time. They are made when needed, so that a process can start before its database.

    Statements leave nothing behind in a session. One that did not end by itself, or was cancelled, costs its
    connection: what the server still does for it is nobody's.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, max_size: int) -> None:
        self._connect = connect
        self._free_places = max_size
        self._idle: list[Connection] = []
        """The last one is taken first."""
        self._waiting: deque[asyncio.Future[Connection]] = deque()
        """Each gets a connection, or None: the place for one."""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """The rows of one statement."""
        connection = await self.take()
        try:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
        except BaseException as exc:
            self.give_back(connection, exc)
            raise
        self.give_back(connection)
        return rows

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        """The first value of the first row."""
        rows = await self.fetch(statement, *arguments)
        return rows[0][0] if rows else None

    async def execute(self, statement: str, *arguments: Any) -> None:
        """One statement without rows."""
        await self.fetch(statement, *arguments)

    def acquire(self) -> _Taken:
        """A connection for several statements, as a context."""
        return _Taken(self)

    async def take(self) -> Connection:
        """A connection, to be given back; who has waited for longest has the next."""
        if self._closed:
            raise asyncpg.InterfaceError("the connections are closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._free_places += 1
        if self._free_places:
            self._free_places -= 1
            return await self._open()
        turn: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            connection = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on(turn.result())
            raise
        return connection if connection is not None else await self._open()

    def give_back(self, connection: Connection, failure: BaseException | None = None) -> None:
        """For others, unless its last statement did not come to an end; that has nobody wait."""
        # After an error of its own the server waits for the next statement.
        has_ended = failure is None or isinstance(failure, asyncpg.PostgresError)
        if not has_ended or self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            connection = None
        self._pass_on(connection)

    async def close(self) -> None:
        """Whoever still uses one loses it when it is given back."""
        self._closed = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(asyncpg.InterfaceError("the connections are closed"))
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=_CLOSE_SECONDS)
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    async def _open(self) -> Connection:
        try:
            return await self._connect()
        except BaseException:
            self._pass_on(None)
            raise

    def _pass_on(self, connection: Connection) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        if connection is None:
            self._free_places += 1
        else:
            self._idle.append(connection)


class _Taken:
    """One connection of the sessions, while a context lasts."""

    def __init__(self, sessions: PostgresSessions) -> None:
        self._sessions = sessions
        self._connection: Connection = None

    async def __aenter__(self) -> Connection:
        self._connection = await self._sessions.take()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions.give_back(self._connection, error)
