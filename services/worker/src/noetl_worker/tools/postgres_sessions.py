"""Connections to one database, so many at most: taken and given back without a task or a timer for each call.

The driver's own pool makes a task to take a connection and another to give it back, so that limits of time and
cancellation hold at any moment. Of neither is there need where a connection is idle, and where a call has ended by
itself.

Calls that are of one task of a frame may leave a connection to each other as it is; before anybody else gets it, when
their frame ends, and when none of them wants it for a moment, it is reset as always (ADR 0074).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from noetl_worker.application.open_frame import FrameTask, OpenFrame
from noetl_worker.tools.kept_sessions import KeptSession, KeptSessions
from noetl_worker.tools.session_settings import Connection, SessionSettings

__all__ = ["Connection", "PostgresSessions", "SessionSettings"]

KEPT_SECONDS: Final = 0.1
"""For how long a connection goes without a reset, in use or not: what a trigger has locked is not held much longer."""
TIDYING_SECONDS: Final = 30.0
"""A server that takes longer to reset one has lost it."""

_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class _Places(asyncio.Semaphore):
    """How many connections there may be."""

    def take(self) -> None:
        """One that is free, as whoever takes it has just seen (`locked`)."""
        self._value -= 1


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
        self._places = _Places(max_size)
        self._max_size = max_size
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._settings = SessionSettings()
        self._open: set[Connection] = set()
        self._idle: list[tuple[Connection, float]] = []
        """With the time since when. The last one is taken first, so that those that are not needed stay idle."""
        self._kept = KeptSessions()
        """Idle as well. Who has a place but no connection finds one here or there, or opens one."""
        self._left_since: dict[Connection, float] = {}
        """When a call has first left one as it was, of those that were not reset since then."""
        self._sweep: asyncio.TimerHandle | None = None
        self._tidying: asyncio.TimerHandle | None = None
        self._tidiers: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def take(
        self, settings: Callable[[], str], *, wait_seconds: float, of_task: FrameTask | None = None
    ) -> Connection:
        """A connection that is set so; raises what the driver raises, and TimeoutError if none is free in time."""
        connection = None if self._places.locked() else self._idle_one(of_task)
        if connection is not None:
            self._places.take()
        elif self._is_closing:
            raise asyncpg.InterfaceError("pool is closing")
        else:
            async with asyncio.timeout(wait_seconds):
                connection = await self._free_one(of_task)
        try:
            await self._settings.want(connection, settings())
        except BaseException:
            await self.give_back(connection, wait_seconds=wait_seconds, has_failed=True)
            raise
        return connection

    def take_left(self, of_task: FrameTask, settings: str) -> Connection | None:
        """One that a call of the same task has left, and that is set so already; nothing of this waits."""
        if not self._kept or self._places.locked():
            return None
        connection = self._kept.last(of_task)
        if connection is None or connection.is_closed() or not self._settings.has(connection, settings):
            return None
        self._kept.own(of_task)
        self._places.take()
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

    def leave(self, connection: Connection, of_task: FrameTask) -> bool:
        """As it is, for calls of the same task, unless it has gone for so long without a reset that it is due one.

        Nothing of this waits, so that it cannot be cancelled.
        """
        now = self._clock()
        if now - self._left_since.setdefault(connection, now) > KEPT_SECONDS:
            return False
        self._kept.add(of_task, KeptSession(connection, now))
        of_task.frame.tell_at_end(self._tidy_after)
        if self._tidying is None and not self._is_closing:
            self._tidying = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._tidy_what_rests)
        self._places.release()
        return True

    async def close(self) -> None:
        """When all have been given back."""
        self._begin_to_close()
        for _ in range(self._max_size):
            await self._places.acquire()
        while (connection := self._idle_one(None) or self._kept.foreign()) is not None:
            self._forget(connection)
            await connection.close()

    def terminate(self) -> None:
        """Also those that are in use."""
        self._begin_to_close()
        for connection in tuple(self._open):
            self._end(connection)

    def _begin_to_close(self) -> None:
        self._is_closing = True
        for timer in (self._sweep, self._tidying):
            if timer is not None:
                timer.cancel()

    def _idle_one(self, of_task: FrameTask | None) -> Connection | None:
        """One that can be used as it is."""
        while True:
            connection = self._kept.own(of_task) if self._kept else None
            if connection is None:
                if not self._idle:
                    return None
                connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._forget(connection)

    async def _free_one(self, of_task: FrameTask | None) -> Connection:
        await self._places.acquire()
        try:
            if self._is_closing:
                raise asyncpg.InterfaceError("pool is closing")
            connection = self._idle_one(of_task) or await self._tidied_one()
            if connection is None:
                connection = await self._connect()
                self._open.add(connection)
        except BaseException:
            self._places.release()
            raise
        return connection

    async def _tidied_one(self) -> Connection | None:
        """One that others have left as it was, and that is nobody's now."""
        while (connection := self._kept.foreign()) is not None:
            self._left_since.pop(connection, None)
            try:
                await self._settings.reset(connection, timeout_seconds=None)  # who waits has a limit
            except _DRIVER_ERRORS:  # what the others have left is not the fault of who takes it
                self._end(connection)
            except BaseException:
                self._end(connection)
                raise
            else:
                return connection
        return None

    async def _reset(self, connection: Connection, wait_seconds: float) -> None:
        self._left_since.pop(connection, None)
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

    def _tidy_after(self, frame: OpenFrame) -> None:
        self._tidy(frame=frame, until=self._clock())

    def _tidy_what_rests(self) -> None:
        self._tidying = None
        self._tidy(frame=None, until=self._clock() - KEPT_SECONDS)
        if self._kept:
            self._tidying = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._tidy_what_rests)

    def _tidy(self, *, frame: OpenFrame | None, until: float) -> None:
        for of_task in self._kept.resting(frame=frame, until=until):
            tidier = asyncio.create_task(self._tidy_one(of_task, until))
            self._tidiers.add(tidier)
            tidier.add_done_callback(self._tidiers.discard)

    async def _tidy_one(self, of_task: FrameTask, until: float) -> None:
        """Unless it is in use again; where somebody waits for a place, that is who takes and resets it."""
        kept = None if self._places.locked() else self._kept.longest_resting(of_task, until=until)
        if kept is not None:
            self._places.take()
            with contextlib.suppress(*_DRIVER_ERRORS):  # it is closed then
                await self._reset(kept.connection, TIDYING_SECONDS)

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
        self._left_since.pop(connection, None)
        self._settings.forget(connection)
