"""The worker's connections to PostgreSQL: a bounded pool per credential and organization, closed when unused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
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


class PooledConnection:
    """A connection of a pool while a call has it. No generator, which would cost every row more than the pool does."""

    __slots__ = ("_connection", "_of_task", "_sessions", "_settings", "_use", "_wait_seconds", "is_left_as_it_is")

    def __init__(
        self,
        use: Use[PoolKey, PostgresSessions],
        *,
        wait_seconds: float,
        settings: Callable[[], str],
        of_task: FrameTask | None,
    ) -> None:
        self._of_task = of_task
        self.is_left_as_it_is = False
        self._use = use
        self._wait_seconds = wait_seconds
        self._settings = settings

    async def __aenter__(self) -> Connection:
        """Taken from the pool, and set for the call."""
        self._sessions = await self._use.__aenter__()
        try:
            self._connection = await self._sessions.take(
                self._settings, wait_seconds=self._wait_seconds, of_task=self._of_task
            )
        except BaseException as exc:
            await self._use.__aexit__(type(exc), exc, None)
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Given back, with nothing left of what the call has done to it."""
        try:
            await self._sessions.give_back(
                self._connection,
                wait_seconds=self._wait_seconds,
                has_failed=kind is not None,
                keep_for=self._of_task if self.is_left_as_it_is else None,
            )
        finally:
            await self._use.__aexit__(None, None, None)


@lru_cache(maxsize=64)
def _settings(timeout_seconds: float, notices_absence: bool) -> str:
    milliseconds = round((timeout_seconds + _SERVER_GRACE_SECONDS) * 1000)
    limits = f"SET statement_timeout = {milliseconds}; SET idle_in_transaction_session_timeout = {milliseconds}"
    return f"{limits}; {_CLIENT_CHECK}" if notices_absence else limits


class PostgresPools:
    """Lends connections."""

    def __init__(self, limits: PostgresLimits | None = None) -> None:
        self.limits = limits or PostgresLimits()
        self._pools: SharedResources[PoolKey, PostgresSessions] = SharedResources(
            limits=self.limits.sharing, close=_close
        )
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
        self,
        owner: Owner,
        target: PostgresTarget,
        *,
        timeout_seconds: float,
        max_size: int | None = None,
        of_task: FrameTask | None = None,
    ) -> PooledConnection:
        """A connection for one call; when that is cancelled, so is the query on the server."""
        size = min(max_size or self.limits.max_connections_per_pool, self.limits.max_connections_per_pool)
        key = PoolKey(owner=owner, target=target, max_size=size)
        return PooledConnection(
            self._pools.use(key, lambda: self._open(key)),
            wait_seconds=min(self.limits.wait_seconds, timeout_seconds),
            settings=lambda: _settings(timeout_seconds, bool(self._notices_absence.get((target.host, target.port)))),
            of_task=of_task,
        )

    async def _open(self, key: PoolKey) -> PostgresSessions:
        return PostgresSessions(
            lambda: self._connect(key.target), max_size=key.max_size, idle_seconds=self.limits.idle_seconds
        )

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
