"""A supercluster as Kubernetes objects: per cluster a ConfigMap, a StatefulSet and two Services."""

from collections.abc import Mapping
from typing import Any

from noetl_cli.deploy.nats_config import as_text
from noetl_cli.deploy.supercluster import (
    CLIENT_PORT,
    CLUSTER_PORT,
    GATEWAY_PORT,
    LEAF_PORT,
    MONITORING_PORT,
    PASSWORDS,
    Cluster,
    Places,
    Topology,
    environment,
    server_config,
)

_SECRET = "noetl-nats-passwords"  # noqa: S105 - the name of a Secret
_KEYS = dict(zip(PASSWORDS, ("noetl", "system", "cluster"), strict=True))


def manifests(topology: Topology, cluster: Cluster) -> list[Mapping[str, Any]]:
    """What is applied to the Kubernetes cluster in which this cluster of servers runs."""
    return [
        _config_map(topology, cluster),
        _service(topology, cluster, headless=True),
        _service(topology, cluster, headless=False),
        _disruption_budget(topology, cluster),
        _stateful_set(topology, cluster),
    ]


def places_in_kubernetes(topology: Topology, cluster: Cluster) -> Places:
    """Names of Services; other clusters are reached by what they advertise."""
    port = GATEWAY_PORT if topology.layout == "gateways" else LEAF_PORT
    name = _name(cluster)
    return Places(
        routes=[
            f"{name}-{index}.{name}-pods.{topology.namespace}.svc:{CLUSTER_PORT}" for index in range(cluster.servers)
        ],
        others={
            other.name: other.advertise or f"{_name(other)}.{topology.namespace}.svc:{port}"
            for other in topology.clusters
            if other.name != cluster.name
        },
        advertise=cluster.advertise,
    )


def _name(cluster: Cluster) -> str:
    return f"nats-{cluster.name}"


def _labels(cluster: Cluster) -> dict[str, str]:
    return {"app.kubernetes.io/name": "nats", "app.kubernetes.io/instance": _name(cluster)}


def _metadata(topology: Topology, cluster: Cluster, suffix: str = "") -> dict[str, Any]:
    labels = {**_labels(cluster), "app.kubernetes.io/part-of": "noetl"}
    if cluster.region:
        labels["noetl.io/region"] = cluster.region
    return {"name": _name(cluster) + suffix, "namespace": topology.namespace, "labels": labels}


def _config_map(topology: Topology, cluster: Cluster) -> Mapping[str, Any]:
    config = server_config(topology, cluster, places_in_kubernetes(topology, cluster))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(topology, cluster),
        "data": {"nats.conf": as_text(config)},
    }


def _ports(topology: Topology) -> dict[str, int]:
    joined = {"gateway": GATEWAY_PORT} if topology.layout == "gateways" else {"leaf": LEAF_PORT}
    return {"client": CLIENT_PORT, "monitor": MONITORING_PORT, "cluster": CLUSTER_PORT, **joined}


def _service(topology: Topology, cluster: Cluster, *, headless: bool) -> Mapping[str, Any]:
    spec: dict[str, Any] = {
        "selector": _labels(cluster),
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in _ports(topology).items()],
    }
    if headless:
        # Servers find each other before any of them is ready.
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(topology, cluster, "-pods" if headless else ""),
        "spec": spec,
    }


def _disruption_budget(topology: Topology, cluster: Cluster) -> Mapping[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(topology, cluster),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(cluster)}},
    }


def _stateful_set(topology: Topology, cluster: Cluster) -> Mapping[str, Any]:
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": topology.storage}},
    }
    if topology.storage_class:
        claim["storageClassName"] = topology.storage_class
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(topology, cluster),
        "spec": {
            "serviceName": f"{_name(cluster)}-pods",
            "replicas": cluster.servers,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _labels(cluster)},
            "template": {"metadata": {"labels": _labels(cluster)}, "spec": _pod(topology, cluster)},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }


def _pod(topology: Topology, cluster: Cluster) -> Mapping[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(topology, cluster)],
        "volumes": [{"name": "config", "configMap": {"name": _name(cluster)}}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _labels(cluster)},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
    }


def _container(topology: Topology, cluster: Cluster) -> Mapping[str, Any]:
    addresses = environment(topology, places_in_kubernetes(topology, cluster))
    return {
        "name": "nats",
        "image": topology.image,
        # Each server has a name of its own; two of one name would take each other for themselves.
        "args": ["--config", "/etc/nats/nats.conf", "--name", "$(POD_NAME)"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": _SECRET, "key": key}}}
                for name, key in _KEYS.items()
            ),
            *({"name": name, "value": value} for name, value in addresses.items()),
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(topology).items()],
        # A server that has much to catch up with is alive, and not to be killed for it.
        "startupProbe": _probe("/healthz?js-server-only=true", period=5, failures=90),
        "readinessProbe": _probe("/healthz?js-server-only=true", period=5, failures=3),
        "livenessProbe": _probe("/healthz?js-enabled-only=true", period=20, failures=3),
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/nats", "readOnly": True},
            {"name": "data", "mountPath": "/data"},
        ],
    }


def _probe(path: str, *, period: int, failures: int) -> Mapping[str, Any]:
    return {
        "httpGet": {"path": path, "port": "monitor"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
