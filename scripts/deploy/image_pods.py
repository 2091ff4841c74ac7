"""A whole installation whose every process is a container of a built image, beside a real database, bus and store.

What `helm install` of the throwaway installation renders is run: its jobs, then its pods until they are ready.
"""

import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from noetl_adapters.payload.buckets import ENDPOINT_VARIABLE
from noetl_cli.dev.sql import execute
from noetl_testkit.backends import embedded_nats, embedded_postgres
from noetl_testkit.eventually import eventually
from noetl_testkit.object_stores import s3_server

from scripts.deploy.check import CHARTS, ROOT, run, tool
from scripts.deploy.containers import Image, Wanted, log_of, running
from scripts.deploy.rendered import SERVICES, Node, Volume

JOBS: Final = ("noetl-store-bucket-1", "noetl-api-migrate-1")
_START_SECONDS: Final = 240.0
_JOB_SECONDS: Final = 600.0


@dataclass(kw_only=True)
class Installation:
    """Pods by their names, as the names of services find them."""

    node: Node
    images: Mapping[str, Image]
    hosts: Path

    def once(self, name: str, wanted: Wanted) -> None:
        """Run a container to its end, which must be a good one."""
        log = log_of(name, self.node.directory)
        with running(wanted, self.node.directory) as process:
            code = process.wait(_JOB_SECONDS)
        if code != 0:
            raise RuntimeError(f"{name} ended with {code}: {log.read_text(encoding='utf-8')[-3000:]}")

    def run_job(self, name: str) -> None:
        """The containers of a job, one after the other."""
        spec = self.node.job(name)
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            self.once(f"{name}-{container['name']}", self.wanted(f"{name}-{container['name']}", spec, container))

    def play(self, playbook: Path) -> None:
        """Run a playbook to its good end, by the command that api's image carries."""
        name = f"noetl-run-{playbook.stem.replace('_', '-')}"
        place = self.node.directory / name
        place.mkdir()
        shutil.copy(playbook, place)
        wanted = Wanted(
            name=name,
            image=self.image_of("api"),
            command=["noetl", "run", f"/tmp/{playbook.name}"],  # noqa: S108
            variables={
                "NOETL_API_ADDRESS": "noetl-api:7700",
                "NOETL_TOKEN": self.node.secrets["noetl-user"]["token"],
            },
            volumes=[Volume(path="/tmp", place=place, secret=False)],  # noqa: S108
            hosts=self.hosts,
        )
        self.once(name, wanted)

    def image_of(self, service: str) -> Image:
        (container,) = self.node.workload(service)["containers"]
        return self.images[container["image"]]

    def wanted(self, pod: str, spec: Mapping[str, Any], container: Mapping[str, Any]) -> Wanted:
        """What a kubelet would ask of its runtime."""
        return Wanted(
            name=pod,
            image=self.images[container["image"]],
            command=[self.node.here(word) for word in container.get("command", ())],
            arguments=container.get("args", ()),
            variables=self.node.variables(pod, container),
            volumes=list(self.node.volumes(pod, spec, container)),
            hosts=self.hosts,
            memory=container["resources"]["limits"]["memory"],
        )

    @contextmanager
    def pod(self, service: str) -> Iterator[None]:
        """The pod of a service, from ready to its end, which it must find by itself when it is asked to."""
        spec = self.node.workload(service)
        (container,) = spec["containers"]
        name = pod_name(service)
        log = log_of(name, self.node.directory)
        with running(self.wanted(name, spec, container), self.node.directory) as process:
            eventually(lambda: _is_ready(process, container, address(service), log), seconds=_START_SECONDS)
            yield
            process.terminate()
            code = process.wait(spec["terminationGracePeriodSeconds"])
            if code != 0:
                raise RuntimeError(f"{name} ended with {code}: {log.read_text(encoding='utf-8')[-3000:]}")


def pod_name(service: str) -> str:
    return f"noetl-{service}-0"


def address(service: str) -> str:
    """A loopback address of its own: every pod listens on the ports of the chart."""
    return f"127.77.0.{SERVICES.index(service) + 1}"


def _is_ready(process: subprocess.Popen[bytes], container: Mapping[str, Any], host: str, log: Path) -> bool:
    """As the probes of the chart ask."""
    if process.poll() is not None:
        raise RuntimeError(f"ended with {process.returncode}: {log.read_text(encoding='utf-8')[-3000:]}")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probe = container["startupProbe"]["httpGet"]
    try:
        urllib.request.urlopen(f"http://{host}:{ports[probe['port']]}{probe['path']}", timeout=5).close()
    except OSError:
        return False
    if "grpc" not in container["readinessProbe"]:
        return True
    with grpc.insecure_channel(f"{host}:{container['readinessProbe']['grpc']['port']}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def installation(images: Mapping[str, Image]) -> Iterator[Installation]:
    """Stores and Secrets; nothing of NoETL runs yet."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-images-")))
        directory.chmod(0o755)
        node = Node(directory=directory, documents=_rendered())
        _listen_on_addresses_of_their_own(node)
        _connect(node, stack)
        hosts = directory / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(_hosts_of(service) for service in SERVICES))
        yield Installation(node=node, images=images, hosts=hosts)


def _rendered() -> list[dict[str, Any]]:
    values = CHARTS / "noetl" / "values-throwaway.yaml"
    chosen: Sequence[str | Path] = ("--namespace", "noetl", "--kube-version", "1.33", "-f", values)
    shown = run(tool("helm"), "template", "noetl", CHARTS / "noetl", *chosen, cwd=ROOT)
    if shown.returncode != 0:
        raise RuntimeError(shown.stdout)
    return [document for document in yaml.safe_load_all(shown.stdout) if document]


def _listen_on_addresses_of_their_own(node: Node) -> None:
    for service in SERVICES:
        (container,) = node.workload(service)["containers"]
        for variable in container["env"]:
            if variable["name"].endswith("_LISTEN"):
                variable["value"] = f"{address(service)}:{variable['value'].rpartition(':')[2]}"


def _connect(node: Node, stack: ExitStack) -> None:
    """Real stores in place of those of the cluster."""
    database = urlsplit(stack.enter_context(embedded_postgres()).dsn())
    owner = urlsplit(node.secrets["noetl-owner-postgres"]["dsn"])
    execute(
        database.geturl(),
        f"CREATE ROLE noetl_owner LOGIN SUPERUSER PASSWORD '{owner.password}'",
        "CREATE DATABASE noetl OWNER noetl_owner",
    )
    bus = urlsplit(stack.enter_context(embedded_nats()).url)
    node.secrets["noetl-nats"] = {"token": bus.username or ""}
    store = dict(stack.enter_context(s3_server()).environment)
    endpoint = urlsplit(store.pop(ENDPOINT_VARIABLE))
    node.secrets["noetl-store"] = store
    node.addresses |= {
        "noetl-postgres:5432": f"{database.hostname}:{database.port}",
        "noetl-nats:4222": f"{bus.hostname}:{bus.port}",
        "noetl-store:8333": f"{endpoint.hostname}:{endpoint.port}",
    }


def _hosts_of(service: str) -> str:
    pod = pod_name(service)
    return f"{address(service)} noetl-{service} {pod} {pod}.noetl-{service}-pods.noetl.svc\n"
