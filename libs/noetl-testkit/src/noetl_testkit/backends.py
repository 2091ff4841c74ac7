"""Real servers for tests: at an address from the environment, else our own in a temporary directory.

A backend that is not there fails the test that needs it; nothing here ever skips.
"""

import inspect
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from noetl_cli.dev.lock import DirectoryLock
from noetl_cli.dev.nats import EmbeddedNats, NatsNode
from noetl_cli.dev.ports import free_port
from noetl_cli.dev.postgres import EmbeddedPostgres, PostgresCluster
from noetl_cli.dev.sql import accepts_connections, execute, wait_for, with_database
from noetl_core.errors import Unavailable

POSTGRES_VARIABLE = "NOETL_TEST_POSTGRES_DSN"
NATS_VARIABLE = "NOETL_TEST_NATS_URL"
_DIRECTORY_PREFIX = "noetl-test-"

Prepare = Callable[[str], None] | Callable[[str], Awaitable[None]]
"""Fills a new, empty database, given its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBackend:
    """A server on which tests may create databases; they must leave each other's alone."""

    admin_dsn: str = field(repr=False)

    def dsn(self, database: str) -> str:
        """The administrator's address of one database."""
        return with_database(self.admin_dsn, database)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsBackend:
    """A server with JetStream on which tests may create streams; they must leave each other's alone."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDatabase:
    """A database that is filled once and copied for every test."""

    name: str


@contextmanager
def postgres_server(env: Mapping[str, str] = os.environ) -> Iterator[PostgresBackend]:
    """The server that the environment names, which must answer; else one of our own until the end."""
    dsn = env.get(POSTGRES_VARIABLE)
    if dsn is None:
        with embedded_postgres() as server:
            yield PostgresBackend(admin_dsn=server.dsn())
        return
    if not accepts_connections(dsn):
        raise Unavailable(f"PostgreSQL named by {POSTGRES_VARIABLE} does not answer")
    yield PostgresBackend(admin_dsn=dsn)


@contextmanager
def nats_server(env: Mapping[str, str] = os.environ) -> Iterator[NatsBackend]:
    """The server that the environment names, which must answer; else one of our own until the end."""
    url = env.get(NATS_VARIABLE)
    if url is None:
        with embedded_nats() as server:
            yield NatsBackend(url=server.url)
        return
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port or 4222), timeout=5.0).close()
    except OSError as exc:
        raise Unavailable(f"NATS named by {NATS_VARIABLE} does not answer: {exc}") from exc
    yield NatsBackend(url=url)


@contextmanager
def embedded_postgres(
    *, durable: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[EmbeddedPostgres]:
    """A server of one's own, to be stopped, killed and restarted at will."""
    with temporary_directory() as directory:
        cluster = PostgresCluster(
            directory=directory / "postgres",
            port=free_port(),
            durable=durable,
            settings={"max_connections": "200", **(settings or {})},
        )
        with EmbeddedPostgres(cluster) as server:
            yield server


@contextmanager
def embedded_nats(*, sync_always: bool = False) -> Iterator[EmbeddedNats]:
    """A server of one's own, to be stopped, killed and restarted at will."""
    with temporary_directory() as directory:
        node = NatsNode(
            directory=directory / "nats",
            port=free_port(),
            monitoring_port=free_port(),
            sync_always=sync_always,
        )
        with EmbeddedNats(node) as server:
            yield server


@contextmanager
def template_database(server: PostgresBackend, prepare: Prepare) -> Iterator[TemplateDatabase]:
    """A database that `prepare` has filled, closed to sessions so that it can be copied at any time."""
    name = _database_name("template")
    execute(server.admin_dsn, f"CREATE DATABASE {name}")
    try:
        _call(prepare, server.dsn(name))
        execute(
            server.admin_dsn,
            f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",  # noqa: S608
        )
        yield TemplateDatabase(name=name)
    finally:
        execute(server.admin_dsn, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def fresh_database(server: PostgresBackend, template: TemplateDatabase | None = None) -> Iterator[str]:
    """The address of a new database, a copy of the template if there is one; dropped at the end."""
    name = _database_name("test")
    source = template.name if template is not None else "template0"
    # A copy of files takes a tenth of what it takes to write hundreds of small tables to the log page by page.
    execute(server.admin_dsn, f"CREATE DATABASE {name} TEMPLATE {source} STRATEGY FILE_COPY")
    try:
        yield server.dsn(name)
    finally:
        execute(server.admin_dsn, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _call(prepare: Prepare, dsn: str) -> None:
    async def run() -> None:
        outcome = prepare(dsn)
        if inspect.isawaitable(outcome):
            await outcome

    wait_for(run)


def _database_name(kind: str) -> str:
    return f"noetl_{kind}_{secrets.token_hex(6)}"


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory that is removed at the end, and by the next run when this one is killed before it."""
    _remove_abandoned()
    directory = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX))
    directory.chmod(0o711)  # PostgreSQL may have to run as another user; what is inside is private by itself
    lock = DirectoryLock(directory / "owner.lock")
    lock.acquire()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.release()


def _remove_abandoned() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY_PREFIX}*"):
        owner_file = directory / "owner.lock"
        with suppress(FileNotFoundError):  # its owner removes it at this moment
            was_owned = owner_file.stat().st_size > 0  # empty: just being made
            if was_owned and DirectoryLock(owner_file).holder() is None:
                shutil.rmtree(directory, ignore_errors=True)
