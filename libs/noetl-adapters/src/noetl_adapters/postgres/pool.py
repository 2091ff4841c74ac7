"""Connections that cannot hold anything for long, and the one translation of driver errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from noetl_core.errors import DeadlinePassed, NoetlError, Unavailable

SESSION_SETTINGS = {
    "lock_timeout": "3s",
    "statement_timeout": "5s",
    "transaction_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "timezone": "UTC",
}
"""Their defaults are none: a stopped process would hold its locks for ever."""


async def open_pool(
    dsn: str, *, min_size: int, max_size: int, application_name: str, connect_timeout: float = 10.0
) -> asyncpg.Pool:
    """A pool whose sessions have time limits; fails as `Unavailable` when the server is away."""
    async with translated():
        return await asyncpg.create_pool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            timeout=connect_timeout,
            command_timeout=10.0,
            server_settings={**SESSION_SETTINGS, "application_name": application_name},
        )


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Driver errors end here: what can be retried becomes `Unavailable`, the rest stays a defect."""
    try:
        yield
    except NoetlError:
        raise
    except (
        OSError,
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
        asyncpg.InsufficientResourcesError,
        asyncpg.InterfaceError,
        asyncpg.LockNotAvailableError,
        asyncpg.DeadlockDetectedError,
        asyncpg.ReadOnlySQLTransactionError,
    ) as exc:
        raise Unavailable(f"the database is away: {exc}") from exc
    except TimeoutError as exc:
        raise DeadlinePassed("the database did not answer in time") from exc


def transient(exc: BaseException) -> bool:
    """Whether a later attempt may succeed where this one failed."""
    return isinstance(exc, Unavailable | DeadlinePassed)
