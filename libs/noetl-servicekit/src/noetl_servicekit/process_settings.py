"""What every process is told by its environment, before it knows what service it is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from noetl_core.topology import ANYBODY, Topology

from noetl_servicekit.env import Env
from noetl_servicekit.logging import FORMATS, LEVELS

DEFAULT_STOP_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Identity, logs, traces and how to stop."""

    service: str
    instance: str
    log_level: str
    log_format: str
    otlp_endpoint: str | None
    ready_file: Path | None
    stop_seconds: float
    topology: Topology = field(default_factory=Topology)

    @classmethod
    def from_env(cls, service: str, values: Mapping[str, str]) -> "ProcessSettings":
        env = Env(values)
        settings = cls(
            service=service,
            # Two processes of one name would take each other's leases, so the default is never shared.
            instance=env.text("NOETL_INSTANCE", default=f"{service}-{socket.gethostname()}-{os.getpid()}"),
            log_level=env.choice("NOETL_LOG_LEVEL", LEVELS, default="info"),
            log_format=env.choice("NOETL_LOG_FORMAT", FORMATS, default="json"),
            otlp_endpoint=env.optional_url("OTEL_EXPORTER_OTLP_ENDPOINT", schemes=("http", "https")),
            ready_file=env.optional_path("NOETL_READY_FILE"),
            stop_seconds=env.number("NOETL_STOP_SECONDS", default=DEFAULT_STOP_SECONDS, minimum=0.1),
            topology=read_topology(env),
        )
        env.check()
        return settings


def read_topology(env: Env) -> Topology:
    """Where a process with this environment runs; what is not said there is not known."""
    return Topology(
        node=env.text("NOETL_NODE_ID", default=""),
        zone=env.text("NOETL_ZONE", default=""),
        region=env.text("NOETL_REGION", default=""),
        cluster=env.text("NOETL_CLUSTER_ID", default=""),
        tenant=env.text("NOETL_TENANT_ID", default=ANYBODY),
        organization=env.text("NOETL_ORGANIZATION_ID", default=ANYBODY),
    )
