"""What the charts render, run as processes: each container's command and environment, with what a cluster would bring.

A pod has its own addresses and file system; here all share one machine. So ports, names of services and mounted files
are put in place of those of the manifests, and nothing else is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from noetl_cli.dev.ports import free_port
from noetl_cli.dev.sql import execute
from noetl_testkit.backends import NatsBackend, embedded_postgres
from noetl_testkit.eventually import eventually

from scripts.deploy.rendered import SERVICES, Node

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "deploy" / "k8s" / "charts"
TOOLS = ROOT / "build" / "deploy-tools"
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def helm() -> Path:
    subprocess.run(
        ["/bin/bash", str(ROOT / "scripts/deploy/install_tools.sh"), str(TOOLS), "helm"],
        check=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    for chart in (*SERVICES, "noetl"):
        _helm(TOOLS / "bin" / "helm", "dependency", "update", str(CHARTS / chart))
    return TOOLS / "bin" / "helm"


def _helm(program: Path, *arguments: str) -> str:
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def node(helm: Path, nats_server: NatsBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Everything that one `helm install` of a whole installation makes, beside a real database and a real bus."""
    directory = tmp_path_factory.mktemp("node")
    payloads = f"file://{directory}/payloads"
    stores = [
        f"{service}.payload.{key}={value}"
        for service in ("api", "planner", "worker")
        for key, value in (("url", payloads), ("endpoint", ""), ("envFromSecret", ""))
    ]
    rendered = _helm(
        helm,
        *("template", "noetl", str(CHARTS / "noetl"), "--namespace", "noetl", "--kube-version", "1.33"),
        *("-f", str(CHARTS / "noetl" / "values-throwaway.yaml")),
        *(word for setting in stores for word in ("--set", setting)),
    )
    node = Node(directory=directory, documents=[one for one in yaml.safe_load_all(rendered) if one])
    bus = urlsplit(nats_server.url)
    node.secrets["noetl-nats"] = {"token": bus.username or ""}
    with embedded_postgres() as server:
        database = urlsplit(server.dsn())
        owner = urlsplit(node.secrets["noetl-owner-postgres"]["dsn"])
        execute(
            server.dsn(),
            f"CREATE ROLE noetl_owner LOGIN SUPERUSER PASSWORD '{owner.password}'",
            "CREATE DATABASE noetl OWNER noetl_owner",
        )
        node.addresses |= {
            "noetl-postgres:5432": f"{database.hostname}:{database.port}",
            "noetl-nats:4222": f"{bus.hostname}:{bus.port}",
        }
        yield node


@dataclass(kw_only=True)
class Pod:
    """A container that runs, and how it is asked whether it is ready."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    probes: Mapping[str, Any]
    ports: Mapping[str, int]

    def is_started(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(encoding="utf-8")[-3000:]
        probe = self.probes["startup"]["httpGet"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[probe['port']]}{probe['path']}", timeout=5):
                return True
        except OSError:
            return False

    def is_ready(self) -> bool:
        probe = self.probes["readiness"]
        if "grpc" not in probe:
            return self.is_started()
        with grpc.insecure_channel(f"127.0.0.1:{self.ports['grpc']}") as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def running(node: Node, service: str, ports: Mapping[str, int]) -> Iterator[Pod]:
    """The pod of a service; it is asked to end as a kubelet would, and must end by itself."""
    spec = node.workload(service)
    (container,) = spec["containers"]
    pod = f"noetl-{service}-0"
    variables = environment(node, pod, spec, container)
    for variable, port in (("GRPC", "grpc"), ("HTTP", "http"), ("OPS", "metrics")):
        if f"NOETL_{variable}_LISTEN" in variables:
            variables[f"NOETL_{variable}_LISTEN"] = f"127.0.0.1:{ports[port]}"
    outside = {key: value for key, value in os.environ.items() if not key.startswith("NOETL_")}
    log = node.directory / f"{pod}.log"
    program, *arguments = container["args"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(PROGRAMS / program), *arguments], env={**outside, **variables}, stdout=output, stderr=output
        )
    probes = {"startup": container["startupProbe"], "readiness": container["readinessProbe"]}
    try:
        yield Pod(name=pod, process=process, log=log, probes=probes, ports=ports)
        process.terminate()
        assert process.wait(spec["terminationGracePeriodSeconds"]) == 0
    finally:
        process.kill()
        process.wait()


def test_what_one_helm_install_renders_starts_becomes_ready_runs_a_playbook_and_stops(node: Node) -> None:
    _migrate(node)
    ports = {service: {name: free_port() for name in ("grpc", "http", "metrics")} for service in SERVICES}
    for service in SERVICES:
        grpc_address = f"127.0.0.1:{ports[service]['grpc']}"
        node.addresses[f"noetl-{service}-0.noetl-{service}-pods.noetl.svc:7700"] = grpc_address
        node.addresses[f"noetl-{service}:7700"] = grpc_address

    with ExitStack() as pods:
        for service in SERVICES:
            # One after the other: a service that finds nobody ends, and only a kubelet would start it again.
            pod = pods.enter_context(running(node, service, ports[service]))
            eventually(pod.is_started, seconds=120.0)
            eventually(pod.is_ready, seconds=60.0)
        told = subprocess.run(
            [str(PROGRAMS / "noetl"), "run", str(ROOT / "examples" / "playbooks" / "two_steps.yaml")],
            env={
                **os.environ,
                "NOETL_API_ADDRESS": node.addresses["noetl-api:7700"],
                "NOETL_TOKEN": node.secrets["noetl-user"]["token"],
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr


def test_the_compose_file_has_the_topology_of_the_charts(node: Node) -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in SERVICES:
        (container,) = node.workload(service)["containers"]
        rendered = {variable["name"] for variable in container["env"]}

        assert compose[service]["image"] == container["image"]
        assert settings_of(compose[service]["environment"]) - settings_of(rendered) == set()
        # a laptop has one node, and its workers may run whatever their owner wants
        assert settings_of(rendered) - settings_of(compose[service]["environment"]) <= {
            *("NOETL_INSTANCE", "NOETL_NODE_ID", "NOETL_WORKER_POOL", "NOETL_WORKER_SLOTS"),
            *("NOETL_TOOL_SHELL_ENABLED", "NOETL_TOOL_SCRIPT_ENABLED"),
        }


def test_executors_of_spark_are_pods_that_may_do_no_more_than_the_workers(helm: Path) -> None:
    rendered = _helm(
        helm, "template", "noetl", str(CHARTS / "worker"), "-f", str(CHARTS / "worker/ci/spark-executors.yaml")
    )
    documents = [one for one in yaml.safe_load_all(rendered) if one]
    (worker,) = (one["spec"]["template"]["spec"] for one in documents if one["kind"] == "Deployment")
    (template,) = (one for one in documents if one["kind"] == "ConfigMap")
    executor = yaml.safe_load(template["data"]["pod.yaml"])["spec"]
    (container,) = worker["containers"]
    (properties,) = (one["value"] for one in container["env"] if one["name"] == "NOETL_SPARK_PROPERTIES")

    assert executor["automountServiceAccountToken"] is False
    assert executor["securityContext"] == worker["securityContext"]
    assert executor["containers"][0]["securityContext"] == container["securityContext"]
    places = {"NOETL_NODE_ID", "NOETL_CLUSTER_ID", "NOETL_REGION", "NOETL_ZONE"}
    assert {one["name"] for one in executor["containers"][0]["env"]} == places, "they say where they are"
    assert all(one in container["env"] for one in executor["containers"][0]["env"])
    (volume,) = (one for one in worker["volumes"] if one.get("configMap") == {"name": template["metadata"]["name"]})
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == volume["name"])
    assert json.loads(properties)["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/pod.yaml"


def settings_of(names: Iterable[str]) -> set[str]:
    """Names of settings; where a secret comes from is nobody's topology, and a store's address is this test's own."""
    return {
        name.removesuffix("_FILE") for name in names if name.startswith("NOETL_") and name != "NOETL_PAYLOAD_ENDPOINT"
    }


def environment(node: Node, pod: str, spec: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container; files are where they lie on this machine."""
    volumes = list(node.volumes(pod, spec, container))

    def here(value: str) -> str:
        for volume in volumes:
            if value == volume.path or value.startswith(f"{volume.path}/"):
                return str(volume.place) + value.removeprefix(volume.path)
        return value

    return {name: here(value) for name, value in node.variables(pod, container).items()}


def _migrate(node: Node) -> None:
    """The containers of the migration job, one after the other, each with a command and an environment of its own."""
    spec = node.job("noetl-api-migrate-1")
    for container in (*spec["initContainers"], *spec["containers"]):
        program, *arguments = container["command"]
        outside = {key: value for key, value in os.environ.items() if not key.startswith("NOETL_")}
        done = subprocess.run(
            [str(PROGRAMS / program), *arguments],
            env={**outside, **environment(node, "migrate", spec, container)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
