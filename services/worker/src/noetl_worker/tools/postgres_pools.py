"""The worker's connections to PostgreSQL: a bounded pool per credential and organization, closed when unused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import asyncpg
from noetl_core.ports.upkeep import Upkeep

from noetl_worker.tools.postgres_target import PostgresTarget
from noetl_worker.tools.postgres_values import set_codecs
from noetl_worker.tools.python_pool import Owner
from noetl_worker.tools.shared_resources import SharedResources, SharingLimits, Use

APPLICATION_NAME = "noetl-worker"

_SERVER_GRACE_SECONDS = 5.0
"""The server's own limits are only for workers that cannot cancel any more, so they come later."""

_CLIENT_CHECK = "SET client_connection_check_interval = 2000"
"""Has a server notice that the worker is gone while a query runs; old ones, and some systems, cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresLimits:
    """How many connections there may be, and how long things may take."""

    max_connections_per_pool: int = 8
    connect_seconds: float = 10.0
    wait_seconds: float = 30.0
    """For a connection of a pool that has none free."""
    idle_seconds: float = 60.0
    max_result_bytes: int = 512 * 1024 * 1024
    sharing: SharingLimits = field(default_factory=SharingLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """Who shares a pool: nobody with another organization or another password."""

    owner: Owner
    target: PostgresTarget
    max_size: int


class SessionSettings:
    """What the connections of a pool are set to: one that is given back is set for its next call in the same breath.

    Calls that come after each other are mostly alike, rows of a loop for one: those find a session as they want it.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, str] = {}

    def forget(self, connection: Any) -> None:
        """It is new, whatever another one was whose process had the same number."""
        self._by_process.pop(connection.get_server_pid(), None)

    async def want(self, connection: Any, settings: str) -> None:
        """Have a session of these settings."""
        process = connection.get_server_pid()
        if self._by_process.get(process) != settings:
            self._by_process.pop(process, None)
            await connection.execute(settings)
            self._by_process[process] = settings

    async def reset(self, connection: Any) -> None:
        """Nothing of what a call has set, locked or listens to is left when its connection is given back."""
        settings = self._by_process.pop(connection.get_server_pid(), "")
        await connection.execute(f"{connection.get_reset_query()}{settings}")
        self._by_process[connection.get_server_pid()] = settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedPool:
    pool: Any
    settings: SessionSettings


class PooledConnection:
    """A connection of a pool while a call has it. No generator, which would cost every row more than the pool itself.

    The driver's pool makes a task to take a connection and another to give it back, so that limits of time and
    cancellation hold at any moment. Of neither is there need where a connection is idle, and where a call has ended
    by itself: what is cancelled while it gives its connection back loses that connection, as the pool has it.
    """

    __slots__ = ("_connection", "_settings", "_shared", "_use", "_wait_seconds")

    def __init__(self, use: Use[PoolKey, _SharedPool], *, wait_seconds: float, settings: Callable[[], str]) -> None:
        self._use = use
        self._wait_seconds = wait_seconds
        self._settings = settings

    async def __aenter__(self) -> Any:
        """Taken from the pool, and set for the call."""
        self._shared = shared = await self._use.__aenter__()
        try:
            self._connection = connection = await _idle(shared.pool)
            if connection is None:
                self._connection = connection = await shared.pool.acquire(timeout=self._wait_seconds)
            try:
                await shared.settings.want(connection, self._settings())
            except BaseException:
                await shared.pool.release(connection)
                raise
        except BaseException as exc:
            await self._use.__aexit__(type(exc), exc, None)
            raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Given back, with nothing left of what the call has done to it."""
        connection = self._connection
        try:
            if kind is not None or connection._con is None:
                await self._shared.pool.release(connection, timeout=self._wait_seconds)
            else:
                connection._con._on_release()
                await connection._holder.release(self._wait_seconds)
        finally:
            await self._use.__aexit__(None, None, None)


async def _idle(pool: Any) -> Any:
    """A connection that is open and has no user, if there is one: what the pool does, without waiting for anything."""
    if pool.is_closing():
        return None
    try:
        holder = pool._queue.get_nowait()
    except asyncio.QueueEmpty:
        return None
    try:
        if holder.is_connected():
            return await holder.acquire()
    except BaseException:
        pool._queue.put_nowait(holder)
        raise
    pool._queue.put_nowait(holder)
    return None


@lru_cache(maxsize=64)
def _settings(timeout_seconds: float, notices_absence: bool) -> str:
    milliseconds = round((timeout_seconds + _SERVER_GRACE_SECONDS) * 1000)
    limits = f"SET statement_timeout = {milliseconds}; SET idle_in_transaction_session_timeout = {milliseconds}"
    return f"{limits}; {_CLIENT_CHECK}" if notices_absence else limits


class PostgresPools:
    """Lends connections."""

    def __init__(self, limits: PostgresLimits | None = None) -> None:
        self.limits = limits or PostgresLimits()
        self._pools: SharedResources[PoolKey, _SharedPool] = SharedResources(limits=self.limits.sharing, close=_close)
        self._notices_absence: dict[tuple[str, int], bool] = {}

    async def __aenter__(self) -> Self:
        """Nothing is opened yet."""
        await self._pools.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection, also those in use."""
        await self._pools.__aexit__(kind, error, trace)

    @property
    def upkeep(self) -> Upkeep:
        """What has to be done while it is open."""
        return self._pools.upkeep("postgres-pools")

    @property
    def open_count(self) -> int:
        """How many pools there are."""
        return self._pools.open_count

    def connection(
        self, owner: Owner, target: PostgresTarget, *, timeout_seconds: float, max_size: int | None = None
    ) -> PooledConnection:
        """A connection for one call; when that is cancelled, so is the query on the server."""
        size = min(max_size or self.limits.max_connections_per_pool, self.limits.max_connections_per_pool)
        key = PoolKey(owner=owner, target=target, max_size=size)
        return PooledConnection(
            self._pools.use(key, lambda: self._open(key)),
            wait_seconds=min(self.limits.wait_seconds, timeout_seconds),
            settings=lambda: _settings(timeout_seconds, bool(self._notices_absence.get((target.host, target.port)))),
        )

    async def _open(self, key: PoolKey) -> _SharedPool:
        target, settings = key.target, SessionSettings()

        async def prepare(connection: Any) -> None:
            settings.forget(connection)
            await set_codecs(connection)
            place = (target.host, target.port)
            if place not in self._notices_absence:
                try:
                    await connection.execute(_CLIENT_CHECK)
                except asyncpg.PostgresError:
                    self._notices_absence[place] = False
                else:
                    self._notices_absence[place] = True

        pool = await asyncpg.create_pool(
            host=target.host,
            port=target.port,
            user=target.user,
            password=target.password,  # never None: the driver would look for one in the worker's environment
            database=target.database,
            ssl=target.sslmode,
            server_settings={**dict(target.settings), "application_name": APPLICATION_NAME},
            min_size=0,
            max_size=key.max_size,
            timeout=self.limits.connect_seconds,
            max_inactive_connection_lifetime=self.limits.idle_seconds,
            # Statements are written by people and seldom twice the same; poolers in between know none either.
            statement_cache_size=0,
            init=prepare,
            reset=settings.reset,
        )
        return _SharedPool(pool=pool, settings=settings)


async def _close(shared: _SharedPool) -> None:
    try:
        async with asyncio.timeout(2.0):
            await shared.pool.close()
    except TimeoutError:
        shared.pool.terminate()
