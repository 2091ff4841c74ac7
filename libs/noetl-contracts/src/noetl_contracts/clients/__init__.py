"""Typed clients of every contract: core values in, core values out, errors as the core's error tree.

Each is loaded when somebody names it: whoever asks for a status need not wait for what only replays are made of.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from noetl_contracts.clients.catalog import CatalogClient
    from noetl_contracts.clients.commands import CommandClient
    from noetl_contracts.clients.credentials import CredentialClient, ResolvedCredentials
    from noetl_contracts.clients.event_log import EventLogClient, WatchedEvents
    from noetl_contracts.clients.evidence import EvidenceClient
    from noetl_contracts.clients.executions import (
        CancelledExecution,
        ExecutionClient,
        RedrivenExecution,
        StartedExecution,
    )
    from noetl_contracts.clients.frames import FrameClient
    from noetl_contracts.clients.methods import IDEMPOTENT_METHODS
    from noetl_contracts.clients.payloads import FetchedPayload, PayloadClient
    from noetl_contracts.clients.projections import ProjectionClient
    from noetl_contracts.clients.replay import ReplayClient, ReplayedState
    from noetl_contracts.clients.routing_snapshots import RoutingSnapshotClient
    from noetl_contracts.clients.shards import ShardClient
    from noetl_contracts.clients.snapshots import SnapshotClient
    from noetl_contracts.clients.why import ExplainedExecution, WhyClient
    from noetl_contracts.clients.workers import WorkerClient

__all__ = [
    "IDEMPOTENT_METHODS",
    "CancelledExecution",
    "CatalogClient",
    "CommandClient",
    "CredentialClient",
    "EventLogClient",
    "EvidenceClient",
    "ExecutionClient",
    "ExplainedExecution",
    "FetchedPayload",
    "FrameClient",
    "PayloadClient",
    "ProjectionClient",
    "RedrivenExecution",
    "ReplayClient",
    "ReplayedState",
    "ResolvedCredentials",
    "RoutingSnapshotClient",
    "ShardClient",
    "SnapshotClient",
    "StartedExecution",
    "WatchedEvents",
    "WhyClient",
    "WorkerClient",
]

_MODULES: Final = {
    "catalog": ("CatalogClient",),
    "commands": ("CommandClient",),
    "credentials": ("CredentialClient", "ResolvedCredentials"),
    "event_log": ("EventLogClient", "WatchedEvents"),
    "evidence": ("EvidenceClient",),
    "executions": ("CancelledExecution", "ExecutionClient", "RedrivenExecution", "StartedExecution"),
    "frames": ("FrameClient",),
    "methods": ("IDEMPOTENT_METHODS",),
    "payloads": ("FetchedPayload", "PayloadClient"),
    "projections": ("ProjectionClient",),
    "replay": ("ReplayClient", "ReplayedState"),
    "routing_snapshots": ("RoutingSnapshotClient",),
    "shards": ("ShardClient",),
    "snapshots": ("SnapshotClient",),
    "why": ("ExplainedExecution", "WhyClient"),
    "workers": ("WorkerClient",),
}
_PLACES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _PLACES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
