"""A planner over in-memory twins whose clock the test sets: start a playbook, be its worker, look at its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_core.append import AppendRequest, Fence, PlacedEvent, StreamAppend, StreamStart
from noetl_core.canonical import encode
from noetl_core.catalog import to_draft
from noetl_core.commands.events import CommandIssued
from noetl_core.events import Event
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.fold import State, empty, fold_all
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.event_log import Scope
from noetl_core.recorded import Recorded, record
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.routing_snapshots import KeepRouting
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.application.waiting_workers import WaitingWorkers
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks

from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots, at_once
from noetl_testkit.until import until

SCOPE = Scope(tenant_id="t", organization_id="o")
WORKER = Worker(worker_id="ada")
LEASE_SECONDS = 30.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


class Planning:
    """One execution of one playbook. Planners can be made anew at any time; the log stays."""

    def __init__(self, *, snapshot_events: int = 0, rules: str = "planning") -> None:
        self.now = NOON
        leases = InMemoryShardLeases(clock=lambda: self.now)
        self.log = InMemoryEventLog(leases=leases, clock=lambda: self.now)
        self.snapshots = InMemoryRoutingSnapshots(self.log, leases)
        self.snapshot_events = snapshot_events
        self.rules = rules
        self.catalog = InMemoryCatalog()
        self.payloads = InMemoryPayloadStore()
        self.execution_id = self.log.next_id()
        self.actors = self.planner()
        self.log.on_commit.append(self._deliver)

    def planner(self) -> Actors:
        """Another planner, which knows nothing yet."""
        self.counted = MetricSet()
        metrics = PlannerMetrics(self.counted)
        load_plan = LoadPlan(PinnedPlaybooks(self.catalog), self.payloads, max_attempts=3)
        rules = TurnRules(
            lease_seconds=LEASE_SECONDS,
            now=lambda: self.now,
            work_subject=lambda pool, kind: f"work.{pool}",
            waiting=WaitingWorkers(lease_seconds=LEASE_SECONDS),
        )

        def fence(shard: int) -> Fence:
            return Fence(role="planner", shard=shard, epoch=0)

        routing = KeepRouting(
            self.snapshots,
            rules=self.rules,
            every_events=self.snapshot_events,
            fence=fence,
            metrics=metrics,
            aside=at_once,
        )

        def make(execution_id: int, shard: int) -> Actor:
            return Actor(
                execution_id,
                shard=shard,
                log=self.log,
                load_plan=load_plan,
                rules=rules,
                fence=fence,
                producer="urn:test",
                metrics=metrics,
                routing=routing,
            )

        return Actors(
            shard_count=64,
            owns=lambda shard: True,
            owner_address=lambda shard: None,
            make_actor=make,
            metrics=metrics,
            waiting=rules.waiting,
        )

    def _deliver(self, events: Sequence[PlacedEvent]) -> None:
        for placed in events:
            self.actors.take(placed.head.execution_id, placed.stored)

    def pass_time(self, seconds: float) -> None:
        """Everybody's clock goes on."""
        self.now += timedelta(seconds=seconds)

    async def start(self, yaml: str, *, parent: int | None = None, **workload: Any) -> Planning:
        """Start a playbook, whose head is given, and wait for its first decision."""
        entry = (await self.catalog.register(SCOPE, HEAD + yaml)).entry
        ref = await self.payloads.put(
            tenant_id="t", organization_id="o", data=encode(workload), media_type="application/json"
        )
        first = PlaybookInitialized(
            path=entry.path, version=entry.version, catalog_id=entry.catalog_id, payload_ref=ref
        )
        await self.append(first, key="execution/start", start=StreamStart(parent_execution_id=parent))
        await until(lambda: len(self.events()) > 1)
        return self

    async def append(self, content: Event, *, key: str, start: StreamStart | None = None) -> None:
        """What somebody else than the planner appends."""
        stream = StreamAppend(
            execution_id=self.execution_id, drafts=(to_draft(content, idempotency_key=key),), start=start
        )
        await self.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))

    async def replace_planner(self) -> None:
        """The planner is gone with all it knew; another one owns the shard now."""
        await self.actors.stop()
        self.actors = self.planner()
        self.actors.expect(self.execution_id, len(self.events()), terminal=False)

    async def claim(self, step: str) -> GrantedCommand:
        """Claim the command that is issued for a step."""
        (outcome,) = await self.actors.claim(WORKER, [self.issued(step)])
        assert outcome.command is not None, outcome.refusal
        return outcome.command

    async def run(self, step: str, result: Mapping[str, Any] | None = None) -> None:
        """Claim and complete a step's command."""
        await self.complete(await self.claim(step), result)

    async def complete(self, command: GrantedCommand, result: Mapping[str, Any] | None = None) -> None:
        """Deliver a result; the next command is left to whoever claims it."""
        await self.actors.complete(WORKER, command.key, result or ok(), wants_next=False)

    async def run_all(self, step: str, result: Mapping[str, Any] | None = None) -> None:
        """Be the worker of a loop until no item of it is left to run."""
        while open_keys := [key for key in self.all_issued(step) if self.state.commands[key.command_id].is_open]:
            for outcome in await self.actors.claim(WORKER, open_keys):
                if outcome.command is not None:
                    await self.complete(outcome.command, result)

    def issued(self, step: str) -> CommandKey:
        """The newest command of a step."""
        return self.all_issued(step)[-1]

    def all_issued(self, step: str) -> list[CommandKey]:
        """Every command of a step, in order."""
        commands = [one.content for one in self.events() if isinstance(one.content, CommandIssued)]
        return [
            CommandKey(execution_id=self.execution_id, command_id=one.command_id)
            for one in commands
            if one.step == step
        ]

    def events(self) -> list[Recorded]:
        """The log."""
        stream = self.log.streams.get(self.execution_id)
        return [record(stored) for stored in stream.events] if stream else []

    def types(self) -> list[str]:
        """Types of all events, in order."""
        return [one.envelope.event_type for one in self.events()]

    def entered(self) -> list[str]:
        """Steps in the order in which they were entered."""
        return [one.envelope.node_name for one in self.events() if one.envelope.event_type == "step.enter"]

    @property
    def state(self) -> State:
        """What a fold of the whole log gives."""
        return fold_all(empty(self.execution_id), self.events())


def ok(**selected: Any) -> dict[str, Any]:
    """A result of which routing sees some scalars."""
    select = {f"/{name}": value for name, value in selected.items()}
    return {"status": "ok", "reference": None, "parent_ref": None, "context": {"select": select} if select else {}}
