"""A few statements on a server of our own, from code that is not asynchronous; asyncpg ends here."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
from noetl_core.errors import NotAuthenticated, Unavailable

_CONNECT_SECONDS = 5.0
_T = TypeVar("_T")


def postgres_dsn(*, user: str, password: str, port: int, database: str, host: str = "127.0.0.1") -> str:
    """An address with everything that a client needs."""
    user, password, database = (quote(word, safe="") for word in (user, password, database))
    return f"postgresql://{user}:{password}@{host}:{port}/{database}"


def with_database(dsn: str, database: str) -> str:
    """The same server and user, another database."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(path=f"/{quote(database, safe='')}"))


def accepts_connections(dsn: str) -> bool:
    """Whether a real session can be opened; a wrong password is an error, since waiting will not help."""
    parts = urlsplit(dsn)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1.0).close()
    except OSError:
        return False  # the cheap question first: it is asked many times while a server starts
    return wait_for(lambda: _probe(dsn))


def execute(dsn: str, *statements: str) -> None:
    """Run statements one by one, each in its own transaction."""
    wait_for(lambda: _execute(dsn, statements))


def fetch_value(dsn: str, query: str, *arguments: object) -> Any:
    """The first column of the first row."""
    return wait_for(lambda: _fetch_value(dsn, query, arguments))


def wait_for(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end on a loop of its own, also where the caller's thread already runs one."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(work()))
        except BaseException as exc:  # handed to the caller, whatever it is
            outcome.set_exception(exc)

    thread = threading.Thread(target=run, name="sql", daemon=True)
    thread.start()
    thread.join()
    return outcome.result()


async def _probe(dsn: str) -> bool:
    try:
        connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as exc:
        raise NotAuthenticated(f"the server refuses the password kept for it: {exc}") from exc
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    try:
        return bool(await connection.fetchval("SELECT NOT pg_is_in_recovery()"))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    finally:
        await connection.close()


async def _execute(dsn: str, statements: tuple[str, ...]) -> None:
    connection = await _connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _fetch_value(dsn: str, query: str, arguments: tuple[object, ...]) -> Any:
    connection = await _connect(dsn)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def _connect(dsn: str) -> Any:
    try:
        return await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError) as exc:
        raise Unavailable(f"PostgreSQL at {urlsplit(dsn).hostname}:{urlsplit(dsn).port}: {exc}") from exc
