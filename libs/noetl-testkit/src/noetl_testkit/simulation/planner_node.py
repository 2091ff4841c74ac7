"""The wiring of a planner, as its bootstrap does it, over simulated neighbours."""

from __future__ import annotations

import asyncio

from noetl_contracts.subjects import shard_filter, work_subject
from noetl_core.append import Fence
from noetl_core.errors import NotOwner
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.gated_reads import GatedReads
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.owners import Owners
from noetl_planner.application.routing_snapshots import KeepRouting
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.application.waiting_workers import WaitingWorkers
from noetl_planner.application.wake_workers import WakeWorkers
from noetl_planner.entrypoints.event_consumer import consume_events
from noetl_planner.entrypoints.head_sweep import HeadSweep, repeat_hints, sweep_heads
from noetl_servicekit.shard_ownership import ShardOwnership

from noetl_testkit.memory.routing_snapshots import at_once
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import (
    HEAD_POLL_SECONDS,
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    OWNERSHIP,
    REHINT_SECONDS,
    SHARDS,
    SNAPSHOT_EVENTS,
    Installation,
    KnownPlaybooks,
    metrics,
)


class PlannerNode:
    """As the planner's bootstrap wires it."""

    def __init__(self, place: Installation, node: Node) -> None:
        self._place = place
        self._node = node
        self._gained = asyncio.Event()
        self._log = GatedReads(place.api("api", by=node))
        leases = place.api("leases", by=node)
        self._wake = WakeWorkers(place.bus)
        self._owners = Owners(leases)
        self._load_plan = LoadPlan(KnownPlaybooks(place.catalog), place.database("payloads"), max_attempts=MAX_ATTEMPTS)
        self._rules = TurnRules(
            lease_seconds=LEASE_SECONDS,
            now=place.now,
            work_subject=lambda pool, kind: work_subject(pool=pool, kind=kind),
            waiting=WaitingWorkers(lease_seconds=LEASE_SECONDS, clock=place.loop.time),
        )
        self._routing = KeepRouting(
            place.api("routing", by=node),
            rules="simulated",
            every_events=SNAPSHOT_EVENTS,
            fence=self._fence,
            metrics=metrics().planner,
            aside=at_once,
        )
        self.actors = Actors(
            shard_count=SHARDS,
            owns=lambda shard: self.ownership.epoch(shard) is not None,
            owner_address=self._owners.address,
            make_actor=self._actor,
            metrics=metrics().planner,
            waiting=self._rules.waiting,
        )
        self.ownership = ShardOwnership(
            leases,
            OWNERSHIP,
            role="planner",
            instance=node.name,
            address=node.name,
            metrics=metrics().shards,
            on_gained=lambda gained: self._changed(),
            on_lost=self._lost,
            incarnation=f"{node.name}/{node.incarnations}",
            clock=place.loop.time,
        )
        self._consumer = place.bus.consumer(node.name, ())
        self._sweep = HeadSweep(self._log, self.actors, owned=self.ownership.epochs)

    def _actor(self, execution_id: int, shard: int) -> Actor:
        return Actor(
            execution_id,
            shard=shard,
            log=self._log,
            load_plan=self._load_plan,
            rules=self._rules,
            fence=self._fence,
            producer=f"urn:noetl:planner:{self._node.name}",
            metrics=metrics().planner,
            on_fenced=self.ownership.fenced,
            on_hints=self._wake,
            routing=self._routing,
        )

    def _fence(self, shard: int) -> Fence:
        epoch = self.ownership.epoch(shard)
        if epoch is None:
            raise NotOwner(shard=shard, address=None)
        return Fence(role="planner", shard=shard, epoch=epoch)

    def _lost(self, lost: frozenset[int]) -> None:
        self._sweep.forget(lost)
        self._place.loop.create_task(self.actors.drop_shards(lost))
        self._changed()

    def _changed(self) -> None:
        self._gained.set()
        subjects = [shard_filter(shard) for shard in sorted(self.ownership.epochs())]
        self._place.loop.create_task(self._consumer.set_subjects(subjects))

    def wipe(self) -> None:
        """Forget every execution, as if each had been let go of; the sweep has to find them again."""
        held = frozenset(self.ownership.epochs())
        self._sweep.forget(held)
        self._place.loop.create_task(self.actors.drop_shards(held))
        self._gained.set()

    async def run(self) -> None:
        """Everything that runs by itself."""
        actors, told = self.actors, metrics().planner
        await self._place.supervise(
            ownership=self.ownership.run,
            owners=lambda beat: self._owners.keep_current(every_seconds=OWNERSHIP.heartbeat_seconds, beat=beat),
            events=lambda beat: consume_events(
                self._consumer, actors, told, log_branch=lambda: self.ownership.log_branch, beat=beat
            ),
            heads=lambda beat: sweep_heads(
                self._sweep, every_seconds=HEAD_POLL_SECONDS, gained=self._gained, beat=beat
            ),
            hints=lambda beat: repeat_hints(actors, self._place.bus, told, every_seconds=REHINT_SECONDS, beat=beat),
        )


async def start_planner(place: Installation, node: Node) -> None:
    """One planner."""
    planner = PlannerNode(place, node)
    node.ports["planner"] = planner.actors
    node.wipe = planner.wipe
    await planner.run()
