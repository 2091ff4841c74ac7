"""What the processes of a simulated installation have in common: settings, neighbours, supervised loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.telemetry import ApiMetrics
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.support import REGISTERED
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.catalog import PlaybookSource
from noetl_core.ports.event_log import Scope
from noetl_planner.telemetry import PlannerMetrics
from noetl_projector.telemetry import ProjectorMetrics
from noetl_reaper.telemetry import ReaperMetrics
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_servicekit.shard_ownership import OwnershipSettings, ShardMetrics
from noetl_servicekit.supervision import Backoff, LoopBody, SupervisedLoop
from noetl_servicekit.telemetry import LoopMetrics
from noetl_worker.telemetry import WorkerMetrics

from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots
from noetl_testkit.simulation.bus import SimulatedBus
from noetl_testkit.simulation.loop import VirtualLoop
from noetl_testkit.simulation.network import Network, Node

SCOPE = Scope(tenant_id="t", organization_id="o")
SOMEBODY = Caller(name="somebody", tenant_id="t", organization_id="o", role=Role.WRITER)
SERVICE = Caller(name="service", tenant_id="*", organization_id="*", role=Role.SERVICE)

SHARDS = 2
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_SECONDS = 5.0
BEAT_SECONDS = 1.5
OWNERSHIP = OwnershipSettings(shard_count=SHARDS, lease_seconds=6.0, heartbeat_seconds=2.0)
HEAD_POLL_SECONDS = 3.0
REHINT_SECONDS = 3.0
REAP_SECONDS = 2.0
DEADLINE_SECONDS = 1.0
CHECKPOINT_SECONDS = 3.0
MAX_ATTEMPTS = 50
SNAPSHOT_EVENTS = 8
"""Few enough that planners which take over find some."""


class Metrics:
    """Made once for all histories: they count, and nobody goes by them."""

    def __init__(self) -> None:
        self.api = ApiMetrics(MetricSet())
        self.of_planners = MetricSet()
        self.planner = PlannerMetrics(self.of_planners)
        self.projector = ProjectorMetrics(MetricSet())
        self.reaper = ReaperMetrics(MetricSet())
        self.worker = WorkerMetrics(MetricSet())
        self.shards = ShardMetrics(MetricSet())
        self.loops = LoopMetrics(MetricSet())


@lru_cache(maxsize=1)
def metrics() -> Metrics:
    """Those of everybody."""
    return Metrics()


@lru_cache(maxsize=512)
def parsed(content: str) -> Playbook:
    """A playbook, read once."""
    return parse_playbook(content, supported=REGISTERED)[0]


class KnownPlaybooks(PinnedPlaybooks):
    """Read once for all histories."""

    def __init__(self, catalog: InMemoryCatalog) -> None:
        super().__init__(catalog)
        self._here = catalog

    async def get(self, *, tenant_id: str, organization_id: str, catalog_id: str) -> Playbook:
        """From memory."""
        source = await self._here.get(None, catalog_id=catalog_id)
        return parsed(source.content)


class KnownParsed(ParsedPlaybooks):
    """Read once for all histories."""

    async def of(self, source: PlaybookSource) -> Playbook:
        """From memory."""
        return parsed(source.content)


@dataclass(slots=True, kw_only=True)
class Installation:
    """Everything that outlives a process, and where processes find each other."""

    loop: VirtualLoop
    network: Network
    bus: SimulatedBus
    leases: InMemoryShardLeases
    log: InMemoryEventLog
    projections: InMemoryProjections
    payloads: InMemoryPayloadStore
    catalog: InMemoryCatalog
    routing: InMemoryRoutingSnapshots
    chance: Any
    apis: tuple[str, ...] = ()
    planners: tuple[str, ...] = ()
    projectors: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()

    def now(self) -> datetime:
        """By the clock of the database, and of everybody."""
        return MIDNIGHT + timedelta(seconds=self.loop.time())

    def api(self, port: str, *, by: Node) -> Any:
        """One of the replicas of api: another one for each process that asks."""
        number = (sum(map(ord, by.name)) + by.incarnations) % len(self.apis)
        return self.network.remote(self.apis[number], port)

    def database(self, port: str) -> Any:
        """PostgreSQL and the payload store: never gone for good, but not always heard."""
        return self.network.remote("database", port)

    async def supervise(self, **loops: LoopBody) -> None:
        """Run the loops of a process for ever, as a service group does."""
        stopping = asyncio.Event()
        backoff = Backoff()
        bodies = [
            SupervisedLoop(name, body, beat=_beat, metrics=metrics().loops, backoff=backoff, clock=self.loop.time).run(
                stopping
            )
            for name, body in loops.items()
        ]
        await asyncio.gather(*bodies)


def _beat() -> None:
    """Nobody watches."""


Start = Callable[[Node], Any]
