"""Connections to one database, so many at most: taken and given back without a task or a timer for each call.

The driver's own pool makes a task to take a connection and another to give it back, so that limits of time and
cancellation hold at any moment. Of neither is there need where a connection is idle, and where a call has ended by
itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

Connection = Any
"""A connection of asyncpg, which has no types."""


class SessionSettings:
    """What the connections of a pool are set to: one that is given back is set for its next call in the same breath.

    Calls that come after each other are mostly alike, rows of a loop for one: those find a session as they want it.
    """

    def __init__(self) -> None:
        self._by_connection: dict[Connection, str] = {}

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._by_connection.pop(connection, None)

    async def want(self, connection: Connection, settings: str) -> None:
        """Have a session of these settings."""
        if self._by_connection.get(connection) != settings:
            self._by_connection.pop(connection, None)
            await connection.execute(settings)
            self._by_connection[connection] = settings

    async def reset(self, connection: Connection, *, timeout_seconds: float) -> None:
        """Nothing of what a call has set, locked or listens to is left when its connection is given back."""
        settings = self._by_connection.pop(connection, "")
        if connection.is_in_transaction():  # which the settings would end with
            await connection.reset(timeout=timeout_seconds)
        await connection.execute(f"{connection.get_reset_query()}{settings}", timeout=timeout_seconds)
        self._by_connection[connection] = settings


class PostgresSessions:
    """A connection has one user at a time; one that nobody has used for a while is closed."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        max_size: int,
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._places = asyncio.Semaphore(max_size)
        self._max_size = max_size
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._settings = SessionSettings()
        self._open: set[Connection] = set()
        self._idle: list[tuple[Connection, float]] = []
        """With the time since when. The last one is taken first, so that those that are not needed stay idle."""
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closing = False

    async def take(self, settings: Callable[[], str], *, wait_seconds: float) -> Connection:
        """A connection that is set so; raises what the driver raises, and TimeoutError if none is free in time."""
        connection = None if self._places.locked() else self._idle_one()
        if connection is not None:
            await self._places.acquire()
        elif self._is_closing:
            raise asyncpg.InterfaceError("pool is closing")
        else:
            async with asyncio.timeout(wait_seconds):
                connection = await self._free_one()
        try:
            await self._settings.want(connection, settings())
        except BaseException:
            await self.give_back(connection, wait_seconds=wait_seconds, has_failed=True)
            raise
        return connection

    async def give_back(self, connection: Connection, *, wait_seconds: float, has_failed: bool) -> None:
        """For others, with nothing left of what the call has done to it; closed, if it cannot be had like that.

        A call that has ended by itself does so in its own time: what is cancelled in that moment loses its connection.
        After one that failed or was cancelled, the server may have to be told first to stop, whatever becomes of us.
        """
        if has_failed:
            await asyncio.shield(asyncio.create_task(self._reset(connection, wait_seconds)))
        else:
            await self._reset(connection, wait_seconds)

    async def close(self) -> None:
        """When all have been given back."""
        self._begin_to_close()
        for _ in range(self._max_size):
            await self._places.acquire()
        while (connection := self._idle_one()) is not None:
            self._forget(connection)
            await connection.close()

    def terminate(self) -> None:
        """Also those that are in use."""
        self._begin_to_close()
        for connection in tuple(self._open):
            self._end(connection)

    def _begin_to_close(self) -> None:
        self._is_closing = True
        if self._sweep is not None:
            self._sweep.cancel()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._forget(connection)
        return None

    async def _free_one(self) -> Connection:
        await self._places.acquire()
        try:
            if self._is_closing:
                raise asyncpg.InterfaceError("pool is closing")
            connection = self._idle_one()
            if connection is None:
                connection = await self._connect()
                self._open.add(connection)
        except BaseException:
            self._places.release()
            raise
        return connection

    async def _reset(self, connection: Connection, wait_seconds: float) -> None:
        try:
            if connection.is_closed():
                self._end(connection)
            else:
                await self._settings.reset(connection, timeout_seconds=wait_seconds)
                self._idle.append((connection, self._clock()))
                if self._sweep is None and not self._is_closing:
                    self._sweep_after(self._idle_seconds)
        except BaseException:
            self._end(connection)
            raise
        finally:
            self._places.release()

    def _sweep_after(self, seconds: float) -> None:
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._close_unused)

    def _close_unused(self) -> None:
        """The first ones have been idle for longest."""
        self._sweep = None
        now = self._clock()
        while self._idle:
            connection, idle_since = self._idle[0]
            left_seconds = idle_since + self._idle_seconds - now
            if left_seconds > 0:
                self._sweep_after(left_seconds)
                return
            del self._idle[0]
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        self._forget(connection)
        connection.terminate()

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._settings.forget(connection)
