"""From the `auth` of a step to a connection, with every way in which that can fail as an outcome."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from noetl_core.errors import NoetlError

from noetl_worker.application.credentials import AuthInvalid, Credentials
from noetl_worker.application.frame_credentials import made_of
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.tools.call_failed import CallFailed, credential_failed, failed
from noetl_worker.tools.postgres_errors import DRIVER_ERRORS, sql_error
from noetl_worker.tools.postgres_pools import PostgresPools
from noetl_worker.tools.postgres_rows import Connection
from noetl_worker.tools.postgres_target import PostgresTarget, postgres_target
from noetl_worker.tools.python_pool import Owner
from noetl_worker.tools.sql_results import SqlError
from noetl_worker.tools.tool_config import ToolConfig


async def target_of(config: ToolConfig, credentials: Credentials) -> PostgresTarget:
    """The database that `auth` names."""
    auth = await config.auth(credentials)
    try:
        credential = auth.one()
    except AuthInvalid as exc:
        raise credential_failed(exc) from exc
    if credential is None:
        raise failed(ErrorKind.AUTH, "AUTH_MISSING", f"a {config.call.kind} step needs `auth`")
    return made_of(credential, "target", postgres_target)


@asynccontextmanager
async def lent_connection(
    pools: PostgresPools,
    *,
    owner: Owner,
    target: PostgresTarget,
    timeout_seconds: float,
    max_size: int | None = None,
) -> AsyncIterator[Connection]:
    """A connection; that there is none is raised as `CallFailed`, and how it is given back is nobody's concern."""
    stack = AsyncExitStack()
    try:
        connection = await stack.enter_async_context(
            pools.connection(owner, target, timeout_seconds=timeout_seconds, max_size=max_size)
        )
    except DRIVER_ERRORS as exc:
        raise sql_failed(sql_error(exc)) from exc
    except NoetlError as exc:  # too many pools, or the worker is stopping
        raise failed(ErrorKind.DB_CONNECTION, "PG_POOL_FULL", exc.message) from exc
    try:
        yield connection
    finally:
        with contextlib.suppress(*DRIVER_ERRORS):
            await stack.aclose()


def sql_failed(error: SqlError) -> CallFailed:
    """To be raised: the error of a database as the outcome of the call."""
    return CallFailed(
        Outcome.failed(
            kind=error.kind, code=error.code, message=error.message, retryable=error.retryable, pg=error.facts
        )
    )


def timed_out(timeout_seconds: float) -> SqlError:
    """The call took too long; the server was told to stop."""
    message = f"the statements were still running after {timeout_seconds:g} s and were cancelled"
    return SqlError(kind=ErrorKind.TIMEOUT, code="TIMEOUT", message=message, ends_call=True)
