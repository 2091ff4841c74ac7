"""A bad day for planners: deliveries lost, doubled and late, answers lost, planners killed; all of it by one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_core.append import Appended, AppendRequest, Fence, PlacedEvent, StreamAppend, StreamStart
from noetl_core.catalog import to_draft
from noetl_core.commands.state import CommandStatus
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.fold import State, empty, fold_all
from noetl_core.ports.commands import CommandKey, Worker
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.recorded import record
from noetl_core.routing_snapshots import RoutingSnapshot
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.routing_snapshots import KeepRouting
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks

from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots, at_once

SNAPSHOT_EVENTS = 6
"""Planners that are killed are to find some."""
SCOPE = Scope(tenant_id="t", organization_id="o")


class FlakyLog:
    """The log over a bad network: some calls never arrive, some answers never come back."""

    def __init__(self, log: InMemoryEventLog, chance: random.Random, trouble: float) -> None:
        self.log = log
        self._chance = chance
        self.trouble = trouble

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        await self.maybe_fail()
        appended = await self.log.append(request)
        await self.maybe_fail()
        return appended

    async def read(self, scope: Scope | None, execution_id: int, **options: Any) -> EventPage:
        await self.maybe_fail()
        return await self.log.read(scope, execution_id, **options)

    async def moved_heads(self, shards: Sequence[int], **options: Any) -> Any:
        return await self.log.moved_heads(shards, **options)

    async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
        await self.maybe_fail()
        return await self.log.open_descendants(execution_id, limit=limit)

    async def has_children(self, execution_id: int) -> bool:
        await self.maybe_fail()
        return await self.log.has_children(execution_id)

    async def maybe_fail(self) -> None:
        await asyncio.sleep(0)
        if self._chance.random() < self.trouble:
            raise Unavailable("the network ate it")


class FlakySnapshots:
    """Routing snapshots over the same network."""

    def __init__(self, snapshots: InMemoryRoutingSnapshots, flaky: FlakyLog) -> None:
        self._snapshots = snapshots
        self._flaky = flaky

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """Not always."""
        await self._flaky.maybe_fail()
        return await self._snapshots.find(execution_id)

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """Not always, and not always told."""
        await self._flaky.maybe_fail()
        kept = await self._snapshots.keep(snapshot, fence=fence)
        await self._flaky.maybe_fail()
        return kept


class ChaosWorld:
    """Everything but the planners' own code; a test adds what its workers do."""

    def __init__(self, seed: int, *, trouble: float) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        leases = InMemoryShardLeases(clock=self.tick)
        self.log = InMemoryEventLog(leases=leases, clock=self.tick)
        self.snapshots = InMemoryRoutingSnapshots(self.log, leases)
        self.flaky = FlakyLog(self.log, self.chance, trouble)
        self.catalog = InMemoryCatalog()
        self.payloads = InMemoryPayloadStore()
        self.planners: list[Actors] = []
        self.late: list[tuple[int, int, StoredEvent]] = []
        self.execution_id = self.log.next_id()
        """The execution that `begin` starts, or the one at the head of a family."""
        self.log.on_commit.append(self.deliver)

    def tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    async def begin_with(self, playbook: str) -> None:
        """Two planners, and the first event of an execution."""
        entry = (await self.catalog.register(SCOPE, playbook)).entry
        ref = await self.payloads.put(tenant_id="t", organization_id="o", data=b"{}", media_type="application/json")
        self.planners = [self.planner(), self.planner()]
        first = PlaybookInitialized(path=entry.path, version=1, catalog_id=entry.catalog_id, payload_ref=ref)
        stream = StreamAppend(
            execution_id=self.execution_id,
            drafts=(to_draft(first, idempotency_key="execution/start"),),
            start=StreamStart(),
        )
        await self.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))

    def planner(self) -> Actors:
        metrics = PlannerMetrics(MetricSet())
        load_plan = LoadPlan(PinnedPlaybooks(self.catalog), self.payloads, max_attempts=100)
        rules = TurnRules(
            lease_seconds=10.0, now=self.tick, work_subject=lambda pool, kind: f"noetl.work.{pool}.{kind}"
        )
        routing = KeepRouting(
            FlakySnapshots(self.snapshots, self.flaky),
            rules="chaos",
            every_events=SNAPSHOT_EVENTS,
            fence=_fence,
            metrics=metrics,
            aside=at_once,
        )

        def make(execution_id: int, shard: int) -> Actor:
            return Actor(
                execution_id,
                shard=shard,
                log=self.flaky,
                load_plan=load_plan,
                rules=rules,
                fence=_fence,
                producer="urn:test",
                metrics=metrics,
                retry_seconds=(0.0,),
                failure_seconds=(0.0,),
                routing=routing,
            )

        return Actors(
            shard_count=64, owns=lambda shard: True, owner_address=lambda shard: None, make_actor=make, metrics=metrics
        )

    def any_planner(self) -> Actors:
        return self.chance.choice(self.planners)

    def deliver(self, events: Sequence[PlacedEvent]) -> None:
        for placed in events:
            for index in range(len(self.planners)):
                late = (index, placed.head.execution_id, placed.stored)
                self.late += [late] * self.chance.choice((0, 1, 1, 2))

    def deliver_some(self) -> None:
        self.chance.shuffle(self.late)
        for _ in range(self.chance.randrange(len(self.late) + 1)):
            index, execution_id, event = self.late.pop()
            self.planners[index].take(execution_id, event)

    async def kill_a_planner(self) -> None:
        index = self.chance.randrange(len(self.planners))
        killed, self.planners[index] = self.planners[index], self.planner()
        await killed.stop()

    def sweep(self) -> None:
        """Planners compare heads, as they do every few seconds."""
        for execution_id, stream in self.log.streams.items():
            for planner in self.planners:
                planner.expect(execution_id, stream.head.version, terminal=stream.head.terminal)

    def events(self) -> list[StoredEvent]:
        return self.log.streams[self.execution_id].events

    def state(self, execution_id: int | None = None) -> State:
        wanted = execution_id or self.execution_id
        return fold_all(empty(wanted), map(record, self.log.streams[wanted].events))

    def is_over(self) -> bool:
        return all(stream.head.terminal for stream in self.log.streams.values())

    async def work_once(self, worker: Worker) -> None:
        """Whatever a worker does in one turn."""
        raise NotImplementedError

    async def reap(self, *, share: float = 0.3) -> None:
        """Every claim that is open is taken to be silent now and then, rightly or wrongly."""
        for execution_id in list(self.log.streams):
            for command in self.state(execution_id).commands.values():
                if command.status in (CommandStatus.CLAIMED, CommandStatus.STARTED) and self.chance.random() < share:
                    with suppress(NoetlError):
                        await self.any_planner().abandon(
                            CommandKey(execution_id=execution_id, command_id=command.command_id),
                            expected_aggregate_version=command.aggregate_version,
                            lease_until=self.now,
                            reclaimer="urn:test:reaper",
                        )

    async def live(self, *, turns: int = 3000, meanwhile: Callable[[], Any] | None = None) -> None:
        """Let time pass until everything has ended; `meanwhile` happens every turn."""
        workers = [Worker(worker_id=f"w{number}") for number in range(3)]
        try:
            for turn in range(turns):
                if self.is_over():
                    return
                self.deliver_some()
                await asyncio.gather(*(self.work_once(worker) for worker in workers))
                if turn % 3 == 2:
                    self.sweep()
                    await self.reap()
                if self.chance.random() < 0.05:
                    await self.kill_a_planner()
                if meanwhile is not None:
                    await meanwhile()
                await asyncio.sleep(0)
        finally:
            await self.stop()
        raise AssertionError("somebody waits for ever")

    async def stop(self) -> None:
        for planner in self.planners:
            await planner.stop()


def _fence(shard: int) -> Fence:
    return Fence(role="planner", shard=shard, epoch=0)
