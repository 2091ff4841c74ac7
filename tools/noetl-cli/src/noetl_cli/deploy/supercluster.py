"""Several NATS clusters that work as one: what each server is configured with.

Two layouts, because one thing cannot have both properties: clusters joined by *gateways* are one JetStream domain
(streams are placed in a cluster by name, and the meta group needs a majority of all servers, so an odd number of
regions is wise); clusters joined as *leaf nodes* keep a JetStream domain each, and go on alone when the connection is
cut.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from noetl_cli.deploy.description import DescriptionInvalid, fill, read_description
from noetl_cli.deploy.nats_config import Variable

LAYOUTS: Final = ("gateways", "leafnodes")
ACCOUNT: Final = "NOETL"
"""What a scaler must name: the default account silently reads 0."""
CLIENT_PORT, MONITORING_PORT, CLUSTER_PORT, GATEWAY_PORT, LEAF_PORT = 4222, 8222, 6222, 7222, 7422
PASSWORDS: Final = ("NOETL_NATS_PASSWORD", "NOETL_NATS_SYSTEM_PASSWORD", "NOETL_NATS_CLUSTER_PASSWORD")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster of NATS servers, in one place."""

    name: str
    servers: int = 3
    region: str = ""
    advertise: str = ""
    """host:port under which other clusters reach it; a Service inside one Kubernetes cluster if it is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All clusters, and how they are joined. The first one of leaf nodes is the hub."""

    clusters: tuple[Cluster, ...]
    layout: str = "gateways"
    namespace: str = "nats"
    image: str = "docker.io/library/nats:2.15.0-alpine"
    storage: str = "20Gi"
    storage_class: str = ""

    @property
    def hub(self) -> Cluster:
        return self.clusters[0]


def read_topology(file: Path) -> Topology:
    """A description that makes sense as a whole."""
    document = dict(read_description(file))
    listed = document.pop("clusters", None)
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise DescriptionInvalid(f"{file}: clusters must be a list of mappings")
    clusters = tuple(fill(Cluster, one, where=f"clusters[{index}].") for index, one in enumerate(listed))
    plain: Mapping[str, Any] = {**document, "clusters": clusters}
    topology = fill(Topology, plain)
    problems = _problems(topology)
    if problems:
        raise DescriptionInvalid(f"{file}: " + "; ".join(problems))
    return topology


def _problems(topology: Topology) -> list[str]:
    names = [cluster.name for cluster in topology.clusters]
    problems = [f"{name!r} is no name for a cluster" for name in names if not _NAME.fullmatch(name)]
    problems += [f"there are two clusters {name}" for name in sorted({one for one in names if names.count(one) > 1})]
    problems += [f"{one.name} must have 1, 3 or 5 servers" for one in topology.clusters if one.servers not in (1, 3, 5)]
    if topology.layout not in LAYOUTS:
        problems.append(f"layout must be one of {', '.join(LAYOUTS)}, not {topology.layout!r}")
    if not names:
        problems.append("there is no cluster")
    return problems


def warnings_of(topology: Topology) -> list[str]:
    """What works, and will hurt some day."""
    count = len(topology.clusters)
    if topology.layout == "gateways" and count == 2:
        return ["with two clusters neither has a majority alone: streams cannot be made or moved while one is away"]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a server listens, and where it finds the others; ports differ only where servers share a host."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod has its own address
    client_port: int = CLIENT_PORT
    monitoring_port: int = MONITORING_PORT
    cluster_port: int = CLUSTER_PORT
    gateway_port: int = GATEWAY_PORT
    leaf_port: int = LEAF_PORT
    store_directory: str = "/data"
    routes: Sequence[str] = ()
    """host:port of every server of its own cluster."""
    others: Mapping[str, str]
    """host:port of every other cluster's gateways, or of the hub's leaf port, by name of the cluster."""
    advertise: str = ""


def server_config(topology: Topology, cluster: Cluster, places: Places) -> Mapping[str, object]:
    """The same for all servers of a cluster: a server's own name comes with its command."""
    password, system, internal = (Variable(name) for name in PASSWORDS)
    config: dict[str, object] = {
        "listen": f"{places.host}:{places.client_port}",
        "http": f"{places.host}:{places.monitoring_port}",
        "max_payload": 8 * 1024 * 1024,
        "lame_duck_duration": "30s",
        "lame_duck_grace_period": "5s",
        "jetstream": {"store_dir": places.store_directory, **_domain(topology, cluster)},
        "accounts": {
            ACCOUNT: {"jetstream": "enabled", "users": [{"user": "noetl", "password": password}]},
            "SYS": {"users": [{"user": "system", "password": system}]},
        },
        "system_account": "SYS",
    }
    # One server alone needs a route too, if only to itself: JetStream over gateways is clustered, and insists on it.
    if cluster.servers > 1 or topology.layout == "gateways":
        config["cluster"] = {
            "name": cluster.name,
            "listen": f"{places.host}:{places.cluster_port}",
            "authorization": {"user": "route", "password": internal},
            "routes": [Variable(_route_variable(index)) for index, _ in enumerate(places.routes)],
        }
    if topology.layout == "gateways" and len(topology.clusters) > 1:
        config["gateway"] = _gateway(cluster, places, internal)
    elif topology.layout == "leafnodes":
        config["leafnodes"] = _leaf_nodes(topology, cluster, places, internal)
    return config


def _domain(topology: Topology, cluster: Cluster) -> Mapping[str, object]:
    return {"domain": cluster.name} if topology.layout == "leafnodes" else {}


def _gateway(cluster: Cluster, places: Places, password: Variable) -> Mapping[str, object]:
    gateway: dict[str, object] = {
        "name": cluster.name,
        "listen": f"{places.host}:{places.gateway_port}",
        "authorization": {"user": "gateway", "password": password},
        "gateways": [{"name": name, "url": Variable(_peer_variable(name))} for name in places.others],
    }
    if places.advertise:
        gateway["advertise"] = places.advertise
    return gateway


def _leaf_nodes(topology: Topology, cluster: Cluster, places: Places, password: Variable) -> Mapping[str, object]:
    if cluster.name == topology.hub.name:
        return {
            "listen": f"{places.host}:{places.leaf_port}",
            "authorization": {"users": [{"user": "leaf", "password": password, "account": ACCOUNT}]},
        }
    return {
        "remotes": [{"url": Variable(_peer_variable(topology.hub.name)), "account": ACCOUNT}],
    }


def environment(topology: Topology, places: Places) -> Mapping[str, str]:
    """Addresses with passwords in them, as Kubernetes puts variables into others: `$(NAME)`.

    The server takes a variable only as a whole value, so an address with a password must be a variable of its own.
    """
    password = f"$({PASSWORDS[2]})"
    user = "gateway" if topology.layout == "gateways" else "leaf"
    routes = {_route_variable(n): f"nats://route:{password}@{route}" for n, route in enumerate(places.routes)}
    peers = {_peer_variable(name): f"nats://{user}:{password}@{address}" for name, address in places.others.items()}
    return routes | peers


def _route_variable(index: int) -> str:
    return f"NOETL_NATS_ROUTE_{index}"


def _peer_variable(cluster: str) -> str:
    return f"NOETL_NATS_PEER_{cluster.upper().replace('-', '_')}"
