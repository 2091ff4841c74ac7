"""From the `auth` of a step to a connection, with every way in which that can fail as an outcome."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

from noetl_core.errors import NoetlError

from noetl_worker.application.credentials import AuthInvalid, Credential, Credentials
from noetl_worker.application.frame_credentials import keep_for_name, kept_for_name, made_of
from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.open_frame import FrameTask
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.tools.call_failed import CallFailed, credential_failed, failed
from noetl_worker.tools.postgres_errors import DRIVER_ERRORS, sql_error
from noetl_worker.tools.postgres_pools import PoolKey, PostgresPools
from noetl_worker.tools.postgres_sessions import Connection
from noetl_worker.tools.postgres_target import postgres_target
from noetl_worker.tools.sql_results import SqlError
from noetl_worker.tools.tool_config import ToolConfig, secrets_of


class _KeptPool(NamedTuple):
    """What rows of a frame have in common that name the same credential."""

    key: PoolKey
    secrets: KnownSecrets


async def _credential_of(config: ToolConfig, credentials: Credentials) -> Credential:
    auth = await config.auth(credentials)
    try:
        credential = auth.one()
    except AuthInvalid as exc:
        raise credential_failed(exc) from exc
    if credential is None:
        raise failed(ErrorKind.AUTH, "AUTH_MISSING", f"a {config.call.kind} step needs `auth`")
    return credential


async def pool_of(
    config: ToolConfig, credentials: Credentials, pools: PostgresPools, *, max_size: int | None = None
) -> PoolKey:
    """The pool of the database that `auth` names, for whose call it is: the same for all rows of a frame."""
    call, name = config.call, config.credential_name
    what = "pool" if max_size is None else f"pool of {max_size}"
    known = kept_for_name(call.tenant_id, call.organization_id, name, what) if name else None
    if isinstance(known, _KeptPool):
        config.secrets.add_all(known.secrets)
        return known.key
    credential = await _credential_of(config, credentials)

    def key(credential: Credential) -> PoolKey:
        return pools.key(config.owner, postgres_target(credential), max_size=max_size)

    pool = made_of(credential, what, key)
    if name:
        kept = _KeptPool(pool, made_of(credential, "secrets", secrets_of))
        keep_for_name(call.tenant_id, call.organization_id, name, what, kept)
    return pool


class LentConnection:
    """A connection; that there is none is raised as `CallFailed`, and how it is given back is nobody's concern."""

    __slots__ = ("_pooled",)

    def __init__(
        self, pools: PostgresPools, pool: PoolKey, *, timeout_seconds: float, of_task: FrameTask | None = None
    ) -> None:
        self._pooled = pools.connection(pool, timeout_seconds=timeout_seconds, of_task=of_task)

    def leave_as_it_is(self) -> None:
        """For the next call of the same task, if there is one."""
        self._pooled.is_left_as_it_is = True

    async def __aenter__(self) -> Connection:
        """Every way in which it cannot be had is an outcome."""
        try:
            return self._pooled.left_one() or await self._pooled.__aenter__()
        except DRIVER_ERRORS as exc:
            raise sql_failed(sql_error(exc)) from exc
        except NoetlError as exc:  # too many pools, or the worker is stopping
            raise failed(ErrorKind.DB_CONNECTION, "PG_POOL_FULL", exc.message) from exc

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What the call did counts, however this goes."""
        if kind is None and self._pooled.has_left():
            return
        try:
            await self._pooled.__aexit__(kind, error, trace)
        except DRIVER_ERRORS:
            return


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
