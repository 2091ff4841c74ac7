"""The worker's connections to PostgreSQL: a bounded pool per credential and organization, closed when unused."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Self

import asyncpg
from noetl_core.ports.upkeep import Upkeep

from noetl_worker.application.open_frame import FrameTask
from noetl_worker.tools.postgres_sessions import Connection, PostgresSessions
from noetl_worker.tools.postgres_target import PostgresTarget
from noetl_worker.tools.postgres_values import set_codecs
from noetl_worker.tools.python_pool import Owner
from noetl_worker.tools.shared_resources import SharedResources, SharingLimits

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


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Who shares a pool: nobody with another organization or another password."""

    owner: Owner
    target: PostgresTarget
    max_size: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.owner, self.target, self.max_size)))

    def __hash__(self) -> int:
        return self._hash  # rows of a frame have the same key, and ask by it for each of them


class PooledConnection:
    """A connection of a pool while a call has it. No generator, which would cost every row more than the pool does."""

    __slots__ = ("_connection", "_entry", "_key", "_of_task", "_pools", "_timeout_seconds", "is_left_as_it_is")

    def __init__(
        self, pools: PostgresPools, key: PoolKey, *, timeout_seconds: float, of_task: FrameTask | None
    ) -> None:
        self._pools = pools
        self._key = key
        self._timeout_seconds = timeout_seconds
        self._of_task = of_task
        self.is_left_as_it_is = False
        """For the next call of the same task, if there is one."""

    def left_one(self) -> Connection | None:
        """One that a call of the same task has left as this one wants it: there is nothing to wait for."""
        if self._of_task is None:
            return None
        shared = self._pools.shared
        entry = shared.begin_use(self._key, self._open)
        sessions = entry.resource
        connection = None if sessions is None else sessions.take_left(self._of_task, self._settings())
        if connection is None:
            shared.end_use(self._key, entry)
        else:
            self._entry, self._connection = entry, connection
        return connection

    def has_left(self) -> bool:
        """To the next call of the same task, if that may be, without waiting for anything."""
        sessions, of_task = self._entry.resource, self._of_task
        if not self.is_left_as_it_is or of_task is None or sessions is None:
            return False
        if not sessions.leave(self._connection, of_task):
            return False
        self._pools.shared.end_use(self._key, self._entry)
        return True

    async def __aenter__(self) -> Connection:
        """Taken from the pool, and set for the call."""
        shared, wait_seconds = self._pools.shared, self._pools.limits.wait_seconds
        self._entry = entry = shared.begin_use(self._key, self._open)
        try:
            sessions = entry.resource if entry.resource is not None else await shared.opened(entry)
            self._connection = await sessions.take(
                self._settings, wait_seconds=min(wait_seconds, self._timeout_seconds), of_task=self._of_task
            )
        except BaseException:
            shared.end_use(self._key, entry)
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Given back, with nothing left of what the call has done to it."""
        shared, sessions = self._pools.shared, self._entry.resource
        if sessions is None:
            raise AssertionError("nothing was taken")
        try:
            wait_seconds = min(self._pools.limits.wait_seconds, self._timeout_seconds)
            await sessions.give_back(self._connection, wait_seconds=wait_seconds, has_failed=kind is not None)
        finally:
            shared.end_use(self._key, self._entry)

    async def _open(self) -> PostgresSessions:
        return self._pools.sessions_of(self._key)

    def _settings(self) -> str:
        return self._pools.settings_of(self._key.target, self._timeout_seconds)


@lru_cache(maxsize=64)
def _settings(timeout_seconds: float, notices_absence: bool) -> str:
    milliseconds = round((timeout_seconds + _SERVER_GRACE_SECONDS) * 1000)
    limits = f"SET statement_timeout = {milliseconds}; SET idle_in_transaction_session_timeout = {milliseconds}"
    return f"{limits}; {_CLIENT_CHECK}" if notices_absence else limits


class PostgresPools:
    """Lends connections."""

    def __init__(self, limits: PostgresLimits | None = None) -> None:
        self.limits = limits or PostgresLimits()
        self.shared: SharedResources[PoolKey, PostgresSessions] = SharedResources(
            limits=self.limits.sharing, close=_close
        )
        self._notices_absence: dict[tuple[str, int], bool] = {}

    async def __aenter__(self) -> Self:
        """Nothing is opened yet."""
        await self.shared.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection, also those in use."""
        await self.shared.__aexit__(kind, error, trace)

    @property
    def upkeep(self) -> Upkeep:
        """What has to be done while it is open."""
        return self.shared.upkeep("postgres-pools")

    @property
    def open_count(self) -> int:
        """How many pools there are."""
        return self.shared.open_count

    def key(self, owner: Owner, target: PostgresTarget, *, max_size: int | None = None) -> PoolKey:
        """By what a pool is shared."""
        most = self.limits.max_connections_per_pool
        return PoolKey(owner, target, min(max_size or most, most))

    def connection(self, key: PoolKey, *, timeout_seconds: float, of_task: FrameTask | None = None) -> PooledConnection:
        """A connection for one call; when that is cancelled, so is the query on the server."""
        return PooledConnection(self, key, timeout_seconds=timeout_seconds, of_task=of_task)

    def sessions_of(self, key: PoolKey) -> PostgresSessions:
        """A pool that has no connection yet."""
        return PostgresSessions(
            lambda: self._connect(key.target), max_size=key.max_size, idle_seconds=self.limits.idle_seconds
        )

    def settings_of(self, target: PostgresTarget, timeout_seconds: float) -> str:
        """What a session is set to for a call; known when there is a connection to the server."""
        return _settings(timeout_seconds, bool(self._notices_absence.get((target.host, target.port))))

    async def _connect(self, target: PostgresTarget) -> Connection:
        connection = await asyncpg.connect(
            host=target.host,
            port=target.port,
            user=target.user,
            password=target.password,  # never None: the driver would look for one in the worker's environment
            database=target.database,
            ssl=target.sslmode,
            server_settings={**dict(target.settings), "application_name": APPLICATION_NAME},
            timeout=self.limits.connect_seconds,
            # Statements are written by people and seldom twice the same; poolers in between know none either.
            statement_cache_size=0,
        )
        try:
            await set_codecs(connection)
            place = (target.host, target.port)
            if place not in self._notices_absence:
                self._notices_absence[place] = await _takes_client_check(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection


async def _takes_client_check(connection: Connection) -> bool:
    try:
        await connection.execute(_CLIENT_CHECK)
    except asyncpg.PostgresError:
        return False
    return True


async def _close(sessions: PostgresSessions) -> None:
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await sessions.close()
    finally:
        sessions.terminate()
