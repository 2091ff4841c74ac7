"""A pool of workers, and the object with which KEDA scales it on NoETL's own backlog."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl_contracts.subjects import WORK_STREAM, token

from noetl_cli.deploy.description import DescriptionInvalid, fill, read_description

TRIGGERS = ("prometheus", "nats-jetstream")
_LEAST = {"slots": 1, "min_replicas": 0, "max_replicas": 1, "polling_seconds": 1, "cooldown_seconds": 0} | {
    "stabilization_seconds": 0,
    "lag_threshold": 1,
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """What an operator says about a pool."""

    pool: str = "default"
    deployment: str = "noetl-worker"
    namespace: str = "noetl"
    slots: int = 8
    """Commands that one pod runs at once: the backlog that one pod is worth."""
    min_replicas: int = 0
    max_replicas: int = 20
    polling_seconds: int = 10
    cooldown_seconds: int = 60
    """How long a pool stays without work before it goes to `min_replicas` of 0."""
    stabilization_seconds: int = 120
    """A pool shrinks to the largest size that it needed within this time."""
    trigger: str = "prometheus"
    prometheus_address: str = "http://prometheus-operated.monitoring:9090"
    jetstream_endpoint: str = "nats.nats:8222"
    """host:port of the monitoring of the server that leads the stream: followers answer wrongly."""
    jetstream_account: str = "NOETL"
    """A wrong account silently reads 0."""
    lag_threshold: int = 10


def read_pool(file: Path) -> WorkerPool:
    """A description that makes sense as a whole."""
    pool = fill(WorkerPool, read_description(file))
    problems = []
    for name in ("deployment", "namespace"):
        if not _NAME.fullmatch(getattr(pool, name)):
            problems.append(f"{name} must be a name that Kubernetes takes")
    for name, least in _LEAST.items():
        if getattr(pool, name) < least:
            problems.append(f"{name} must be at least {least}")
    if pool.min_replicas > pool.max_replicas:
        problems.append("min_replicas exceeds max_replicas")
    if pool.trigger not in TRIGGERS:
        problems.append(f"trigger must be one of {', '.join(TRIGGERS)}, not {pool.trigger!r}")
    if not pool.pool:
        problems.append("pool must have a name")
    if problems:
        raise DescriptionInvalid(f"{file}: " + "; ".join(problems))
    return pool


def scaled_object(pool: WorkerPool) -> Mapping[str, Any]:
    """What KEDA is told. The backlog counts what runs too, so a pool never shrinks below its work."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {
            "name": pool.deployment,
            "namespace": pool.namespace,
            "labels": {"app.kubernetes.io/part-of": "noetl", "app.kubernetes.io/component": "worker"},
        },
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.deployment},
            "minReplicaCount": pool.min_replicas,
            "maxReplicaCount": pool.max_replicas,
            "pollingInterval": pool.polling_seconds,
            "cooldownPeriod": pool.cooldown_seconds,
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": pool.stabilization_seconds}}
                }
            },
            "triggers": [_trigger(pool)],
        },
    }


def _trigger(pool: WorkerPool) -> Mapping[str, Any]:
    if pool.trigger == "prometheus":
        metadata = {
            "serverAddress": pool.prometheus_address,
            "query": f'sum(noetl_planner_backlog_commands{{pool="{pool.pool}"}})',
            "threshold": str(pool.slots),
            "activationThreshold": "0",
        }
    else:
        metadata = {
            "natsServerMonitoringEndpoint": pool.jetstream_endpoint,
            "account": pool.jetstream_account,
            "stream": WORK_STREAM,
            "consumer": token(f"pool-{pool.pool}"),
            "lagThreshold": str(pool.lag_threshold),
            "activationLagThreshold": "0",
        }
    return {"type": pool.trigger, "metadata": metadata}
