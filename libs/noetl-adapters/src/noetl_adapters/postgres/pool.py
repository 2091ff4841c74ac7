"""Connections that cannot hold anything for long, and the one translation of driver errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType

import asyncpg
from noetl_core.errors import DeadlinePassed, InvalidInput, NoetlError, Unavailable

from noetl_adapters.postgres.connection_pool import ConnectionPool

SESSION_SETTINGS: Mapping[str, str] = {
    "lock_timeout": "3s",
    "statement_timeout": "5s",
    "transaction_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "timezone": "UTC",
    # Our statements are short lookups and inserts; compiling one would cost more than running it.
    "jit": "off",
}
"""The defaults of the time limits are none: a stopped process would hold its locks for ever."""

PATIENT: Mapping[str, str] = {
    "statement_timeout": "30s",
    "transaction_timeout": "600s",
    "idle_in_transaction_session_timeout": "15s",
}
"""For what one process does aside, with rows that nobody else writes: it may take long, but not hang."""

LOOKUPS: Mapping[str, str] = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
"""For pools whose statements all find rows by index: planned once a session, instead of anew for each argument."""

REFUSED_ROWS: tuple[type[Exception], ...] = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    InvalidInput,
)
"""Errors that are about what was written, not about the database: the same rows would be refused again."""


async def open_pool(
    dsn: str,
    *,
    min_size: int,
    max_size: int,
    application_name: str,
    connect_timeout: float = 10.0,
    command_timeout: float = 10.0,
    settings: Mapping[str, str] | None = None,
    log_branch: Callable[[], str] | None = None,
) -> ConnectionPool:
    """A pool whose sessions have time limits; fails as `Unavailable` when the server is away.

    With `log_branch` it has no sessions with a server whose log went on otherwise than that: whoever knows of events
    that such a log may have lost must not add to what is stored there, until it was told and has begun anew.
    """
    connect = partial(
        asyncpg.connect,
        dsn,
        timeout=connect_timeout,
        command_timeout=command_timeout,
        server_settings={**SESSION_SETTINGS, "application_name": application_name, **(settings or {})},
    )
    if log_branch is not None:
        connect = partial(_connect_to_branch, connect, log_branch)
    pool = ConnectionPool(connect, min_size=min_size, max_size=max_size)
    async with translated():
        await pool.open()
    return pool


async def _connect_to_branch(
    connect: Callable[[], Awaitable[asyncpg.Connection]], log_branch: Callable[[], str]
) -> asyncpg.Connection:
    """Asked once for each connection: no server changes its branch of the log without ending them all."""
    believed = log_branch()
    connection = await connect()
    try:
        found = await read_log_branch(connection)
        if believed and (found, log_branch()) != (believed, believed):
            raise Unavailable("the database has another branch of the log than was told")
    except BaseException:
        connection.terminate()
        raise
    return connection


async def read_log_branch(connection: asyncpg.Connection) -> str:
    """Which continuation of the log the server writes."""
    try:
        found: str = await connection.fetchval("SELECT noetl.log_branch()")
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError) as exc:
        raise Unavailable("the database has not been set up yet, or is of an earlier release") from exc
    except asyncpg.ObjectNotInPrerequisiteStateError as exc:
        raise Unavailable(f"the database is a standby, on which nobody writes: {exc}") from exc
    return found


class _Translated:
    """A context that knows nothing of who is in it, so there is one for all."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            meant = _translation(error)
            if meant is not error:
                raise meant from error


_TRANSLATED = _Translated()


def translated() -> AbstractAsyncContextManager[None]:
    """Driver errors end here: what may pass becomes `Unavailable`, a bad value `InvalidInput`; the rest is a defect."""
    return _TRANSLATED


def _translation(exc: Exception) -> Exception:
    if isinstance(exc, NoetlError):
        return exc
    if isinstance(exc, TimeoutError):  # before OSError, of which it is one
        return DeadlinePassed("the database did not answer in time")
    if isinstance(exc, _AWAY):
        if isinstance(exc, ValueError):  # how the driver says that an argument does not fit its type
            return InvalidInput(f"the database cannot hold this: {exc}")
        return Unavailable(f"the database is away: {exc}")
    if isinstance(exc, asyncpg.DataError):
        return InvalidInput(f"the database cannot hold this: {exc}")
    return exc


_AWAY: tuple[type[Exception], ...] = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.InterfaceError,
    # How the driver says that the server hung up between two messages of one call.
    asyncpg.InternalClientError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ReadOnlySQLTransactionError,
)


def transient(exc: BaseException) -> bool:
    """Whether a later attempt may succeed where this one failed."""
    return isinstance(exc, Unavailable | DeadlinePassed)
