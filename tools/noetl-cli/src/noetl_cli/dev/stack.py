"""What NoETL consists of on one machine: PostgreSQL, NATS, the schema, and six services that know each other."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from noetl_core.errors import InvalidInput

from noetl_cli.db import PASSWORD_VARIABLES, migrate_database, set_role_passwords
from noetl_cli.dev.component import Component, Part, Task
from noetl_cli.dev.credentials import StackCredentials
from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.errors import ServerMissing
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.ports import remembered_ports
from noetl_cli.dev.postgres import PostgresCluster
from noetl_cli.dev.sql import execute, fetch_value, postgres_dsn, wait_for

DATABASE: Final = "noetl"
SHARD_COUNT: Final = 64
SETTINGS_FILE: Final = "settings.env"
"""In the data directory: lines NAME=value that go over the settings of every service."""
REPLICAS_VARIABLE: Final = "NOETL_DEV_REPLICAS"
"""In those lines: how many there are of a service, such as `planner=3,worker=2`; one of each otherwise."""
REPLICATED: Final = ("outbox-publisher", "planner", "projector", "reaper", "worker")
MAX_REPLICAS: Final = 16

_STOP_SECONDS = 8.0
_DATABASE: Final = ("postgres", "schema")
"""The schema must be there before a service starts, and the server until it has stopped."""
_PORTS: Final = ("postgres", "nats", "nats.monitoring", "api.grpc", "api.http", "api.ops")


def payload_url(home: StackHome) -> str:
    """Where results are, unless the settings say otherwise."""
    return (home.root / "payloads").as_uri()


def components(root: Path) -> Sequence[Part]:
    """The stack of a data directory; ports and secrets are those of its last start."""
    return _Stack(StackHome(root=root)).parts()


class _Stack:
    """Everything that several parts must agree on."""

    def __init__(self, home: StackHome) -> None:
        self._home = home
        self._overrides = dict(read_settings(home.root / SETTINGS_FILE))
        self._replicas = read_replicas(self._overrides.pop(REPLICAS_VARIABLE, ""))
        names = [name for service in REPLICATED for name in self._names(service)]
        ports = [*_PORTS, *(f"{name}.{port}" for name in names for port in ("grpc", "ops"))]
        self._ports = remembered_ports(home.ports_file, ports)
        self._credentials = StackCredentials(directory=home.root / "secrets")
        self._credentials.create()
        self._passwords = self._credentials.role_passwords(tuple(PASSWORD_VARIABLES))
        self._postgres = PostgresCluster(directory=home.root / "postgres", port=self._ports["postgres"])
        self._nats = NatsNode(
            directory=home.root / "nats", port=self._ports["nats"], monitoring_port=self._ports["nats.monitoring"]
        )
        self._payload_url = payload_url(home)
        LocalEndpoint(
            address=self._address("api.grpc"),
            http_url=f"http://{self._address('api.http')}",
            token=self._credentials.local_token(),
            payload_url=self._payload_url,
        ).write(home)

    def parts(self) -> Sequence[Part]:
        """In the order in which `noetl dev status` shows them."""
        return [
            self._postgres.component(),
            self._nats.component(),
            Task(name="schema", run=self._prepare_database, depends_on=("postgres",)),
            self._process(
                "api",
                "api",
                role="noetl_api",
                depends_on=_DATABASE,
                NOETL_HTTP_LISTEN=self._address("api.http"),
                NOETL_CREDENTIAL_KEYS_FILE=str(self._credentials.credential_keys_file),
            ),
            *self._service("outbox-publisher", role="noetl_publisher", depends_on=(*_DATABASE, "nats")),
            *self._service("planner", depends_on=("api", "nats")),
            *self._service("projector", role="noetl_projector", depends_on=(*_DATABASE, "api", "nats")),
            *self._service("reaper", depends_on=("api", "planner", "projector")),
            *self._service("worker", depends_on=("api", "nats", "planner")),
        ]

    def _service(self, service: str, *, depends_on: tuple[str, ...], role: str | None = None) -> Iterator[Component]:
        for name in self._names(service):
            yield self._process(name, service, depends_on=depends_on, role=role)

    def _names(self, service: str) -> Sequence[str]:
        return [service if number == 1 else f"{service}-{number}" for number in range(1, self._replicas[service] + 1)]

    def _process(
        self, name: str, service: str, *, depends_on: tuple[str, ...], role: str | None = None, **env: str
    ) -> Component:
        # A planner, projector or publisher of the same name takes its own leases back at once. A worker must not: what
        # its predecessor had claimed is lost, and only another name makes that plain.
        module = f"noetl_{service.replace('-', '_')}"
        if importlib.util.find_spec(module) is None:
            raise ServerMissing(f"noetl-{service} is not installed: pip install 'noetl-cli[dev]' brings all services")
        instance = {} if service == "worker" else {"NOETL_INSTANCE": f"{name}-local"}
        dsn = {} if role is None else {"NOETL_POSTGRES_DSN": self._role_dsn(role)}
        return Component(
            name=name,
            # -P: nothing in the directory where `noetl dev up` was typed can get in the way of a module.
            argv=(sys.executable, "-P", "-m", module),
            env={**self._settings(name), **instance, **dsn, **env, **self._overrides},
            depends_on=depends_on,
            stop_seconds=_STOP_SECONDS + 2.0,
        )

    def _settings(self, name: str) -> Mapping[str, str]:
        return {
            "NOETL_API_ADDRESS": self._address("api.grpc"),
            "NOETL_PLANNER_ADDRESS": self._address("planner.grpc"),
            "NOETL_PROJECTOR_ADDRESS": self._address("projector.grpc"),
            "NOETL_NATS_URL": f"nats://{self._address('nats')}",
            "NOETL_NATS_TOKEN_FILE": str(self._nats.token_file),
            "NOETL_TOKENS_FILE": str(self._credentials.tokens_file),
            "NOETL_TOKEN_FILE": str(self._credentials.service_token_file),
            "NOETL_PAYLOAD_URL": self._payload_url,
            "NOETL_SHARD_COUNT": str(SHARD_COUNT),
            "NOETL_GRPC_LISTEN": self._address(f"{name}.grpc"),
            "NOETL_OPS_LISTEN": self._address(f"{name}.ops"),
            "NOETL_STOP_SECONDS": str(_STOP_SECONDS),
        }

    def _prepare_database(self) -> None:
        """Everything here may have been done before, wholly or in part."""
        administration = self._postgres.dsn()
        exists = fetch_value(administration, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", DATABASE)
        if not exists:
            execute(administration, f"CREATE DATABASE {DATABASE}")
        owner = self._postgres.dsn(DATABASE)
        wait_for(lambda: migrate_database(owner, shard_count=SHARD_COUNT))
        wait_for(lambda: set_role_passwords(owner, self._passwords))

    def _role_dsn(self, role: str) -> str:
        return postgres_dsn(user=role, password=self._passwords[role], port=self._ports["postgres"], database=DATABASE)

    def _address(self, port: str) -> str:
        return f"127.0.0.1:{self._ports[port]}"


def read_replicas(text: str) -> Mapping[str, int]:
    """How many processes each service has; `worker=3,planner=2` changes those two."""
    replicas = dict.fromkeys(REPLICATED, 1)
    for entry in filter(None, (part.strip() for part in text.split(","))):
        service, _, count = entry.partition("=")
        if service not in replicas or not count.isdecimal() or not 1 <= int(count) <= MAX_REPLICAS:
            raise InvalidInput(
                f"{REPLICAS_VARIABLE} gives numbers from 1 to {MAX_REPLICAS} of {', '.join(REPLICATED)}, "
                f"such as worker=3,planner=2, not {entry!r}"
            )
        replicas[service] = int(count)
    return replicas


def read_settings(file: Path) -> Mapping[str, str]:
    """Lines NAME=value; empty ones and those that begin with # are left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip().isidentifier():
            raise InvalidInput(f"{file}:{number}: a setting is NAME=value, not {text!r}")
        settings[name.strip()] = value.strip()
    return settings
