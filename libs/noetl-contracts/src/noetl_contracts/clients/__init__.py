"""Typed clients of every contract: core values in, core values out, errors as the core's error tree."""

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
    "ShardClient",
    "SnapshotClient",
    "StartedExecution",
    "WatchedEvents",
    "WhyClient",
    "WorkerClient",
]
