"""One history: an installation, its users and its bad day, all of it from one seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

from noetl_contracts.messages import pack_events
from noetl_contracts.subjects import event_subject
from noetl_core.append import Appended, PlacedEvent, PreparedRequest
from noetl_core.canonical import sha256_hex
from noetl_core.errors import Fenced, NoetlError
from noetl_core.ports.bus import Message
from noetl_core.ports.catalog import NewVersion

from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog, Outcome
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots
from noetl_testkit.simulation.api_node import start_api
from noetl_testkit.simulation.bus import SimulatedBus
from noetl_testkit.simulation.faults import Fault, Faults, Kind, draw_faults
from noetl_testkit.simulation.loop import VirtualLoop
from noetl_testkit.simulation.network import NOBODY, Network, Node
from noetl_testkit.simulation.nodes import MIDNIGHT, SCOPE, SHARDS, Installation
from noetl_testkit.simulation.planner_node import start_planner
from noetl_testkit.simulation.playbooks import Case, draw_case
from noetl_testkit.simulation.projector_node import start_projector
from noetl_testkit.simulation.reaper_node import start_reaper
from noetl_testkit.simulation.users import User
from noetl_testkit.simulation.worker_node import EffectsOf, start_worker

LONGEST_SECONDS = 600.0
"""Of virtual time: whoever has not ended by then never will."""
LOOK_SECONDS = 0.5
CALLS, MESSAGES, STEPS = 200, 90, 1_200
"""About as many as a history has: faults beyond them do not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a seed stands for, faults and all; a part of the faults makes another script."""

    seed: int
    case: Case
    minds: tuple[str, ...]
    """Of the users: each starts one execution."""
    replicas: tuple[int, int, int, int]
    """Of api, planner, projector and worker."""
    reapers: int = 1
    """One of them is at work."""
    faults: tuple[Fault, ...] = ()

    @property
    def processes(self) -> list[str]:
        """Everything that can be killed."""
        names = ("api", "planner", "projector", "worker", "reaper")
        counts = (*self.replicas, self.reapers)
        return [f"{name}-{place}" for name, count in zip(names, counts, strict=True) for place in range(count)]


def script_of(seed: int) -> Script:
    """What a seed stands for."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    users = chance.choice((1, 1, 1, 2))
    minds = tuple(chance.choice(("", "", "", "", "cancel", "pause")) for _ in range(users))
    replicas = (chance.choice((1, 2)), chance.choice((1, 2, 2)), chance.choice((1, 2)), chance.choice((1, 2)))
    case = draw_case(chance)
    script = Script(seed=seed, case=case, minds=minds, replicas=replicas, reapers=chance.choice((1, 2)))
    faults = draw_faults(chance, processes=script.processes, calls=CALLS, messages=MESSAGES, steps=STEPS)
    return replace(script, faults=tuple(faults))


class World:
    """Runs a script; afterwards everything that there is can be looked at."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.trace: list[str] = []
        self.seen: list[str] = []
        """What was wrong at the moment that it happened."""
        self.acknowledged: list[tuple[int, int, str]] = []
        chance = random.Random(script.seed ^ 0x5EED)  # noqa: S311 - repeatable, not secret
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it has no files, sockets or signals
        self.faults = Faults(script.faults)
        network = Network(self.loop, chance, self.faults, self.note)
        leases = InMemoryShardLeases(shard_count=SHARDS, clock=self._now)
        self.leases = leases
        self.log = InMemoryEventLog(leases=leases, shard_count=SHARDS, clock=self._now)
        self.effects = EffectsOf()
        replicas = [
            tuple(f"{name}-{place}" for place in range(count))
            for name, count in zip(("api", "planner", "projector", "worker"), script.replicas, strict=True)
        ]
        self.place = Installation(
            loop=self.loop,
            network=network,
            bus=SimulatedBus(network, chance, self.faults, self.note),
            leases=leases,
            log=self.log,
            projections=InMemoryProjections(now=self._now),
            payloads=InMemoryPayloadStore(clock=self._now),
            catalog=InMemoryCatalog(clock=self._now),
            routing=InMemoryRoutingSnapshots(self.log, leases),
            chance=chance,
            apis=replicas[0],
            planners=replicas[1],
            projectors=replicas[2],
            workers=replicas[3],
        )
        self.users = [
            User(
                self.place,
                path=f"sim/{script.case.name}",
                key=f"key-{number}",
                mind=mind,
                chance=random.Random(script.seed * 31 + number),  # noqa: S311 - repeatable, not secret
            )
            for number, mind in enumerate(script.minds)
        ]
        self.log.on_commit.append(self._publish)
        self._hints_seen = 0
        self._look_at = 0.0
        self._is_over = False

    def run(self) -> World:
        """Until everything has ended and everybody knows it, or for longer than anything may take."""
        self.loop.run_until(self._set_up())
        self.loop.interruptions = {
            place: partial(self._interrupt, faults) for place, faults in self.faults.processes.items()
        }
        self.loop.run_while(self._goes_on)
        return self

    def close(self) -> None:
        """Let go of everything that is still under way."""
        self.loop.end()

    @property
    def digest(self) -> str:
        """Of every byte of the log, in the order of executions."""
        told = hashlib.sha256()
        for execution_id, stream in sorted(self.log.streams.items()):
            told.update(str(execution_id).encode())
            for event in stream.events:
                told.update(event.checksum.encode())
                told.update(event.body)
        return told.hexdigest()

    @property
    def is_over(self) -> bool:
        """Whether all have ended, rows and all, and every user has had an answer."""
        rows = self.place.projections.executions
        return (
            all(user.is_done for user in self.users)
            and bool(self.log.streams)
            and all(
                stream.head.terminal
                and execution_id in rows
                and rows[execution_id].view.stream_version == stream.head.version
                and rows[execution_id].next_deadline is None
                for execution_id, stream in self.log.streams.items()
            )
        )

    async def _set_up(self) -> None:
        for document in (self.script.case.document, *self.script.case.others):
            await self.place.catalog.add(SCOPE, _version(document))
        network, place = self.place.network, self.place
        database = network.add("database", _idle)
        database.ports.update(
            log=ObservedLog(self.log, self.leases, self),
            leases=self.leases,
            projections=place.projections,
            payloads=place.payloads,
            routing=place.routing,
        )
        starts: list[tuple[Sequence[str], Callable[..., object]]] = [
            (place.apis, start_api),
            (place.planners, start_planner),
            (place.projectors, start_projector),
            (place.workers, partial(start_worker, effects=self.effects)),
            ([f"reaper-{number}" for number in range(self.script.reapers)], start_reaper),
        ]
        for names, start in starts:
            for name in names:
                network.add(name, partial(start, place))  # type: ignore[arg-type]  # each is a coroutine function
        for number, user in enumerate(self.users):
            network.add(f"user-{number}", partial(_live, user))

    def _goes_on(self) -> bool:
        now = self.loop.time()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            if self.is_over or now > LONGEST_SECONDS or self.loop.unhandled:
                return False
        return True

    def _interrupt(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            node = self.place.network.nodes.get(fault.target)
            if node is None:
                continue
            if fault.kind is Kind.KILL:
                self.place.network.kill(node, down_seconds=fault.seconds)
            elif fault.kind is Kind.STOP:
                self.place.network.stop(node, seconds=fault.seconds)
            elif fault.kind is Kind.DEPOSE:
                self._depose(fault.target)
            elif node.wipe is not None and node.is_up and node.process is not None:
                self.note(f"wipe {node.name}")
                node.process.context.copy().run(node.wipe)

    def _depose(self, instance: str) -> None:
        """As if its leases had ended and been taken by another replica, or by a successor of its own."""
        role, _, number = instance.partition("-")
        counts = {"planner": len(self.place.planners), "projector": len(self.place.projectors)}
        count = counts.get(role, self.script.reapers)
        heir = f"{role}-{(int(number) + 1) % count}"
        self.note(f"depose {instance}, in favour of {heir}")
        self.leases.depose(role, instance, heir=heir)

    def _publish(self, events: Sequence[PlacedEvent]) -> None:
        """What was committed is published later, and hints with it: an outbox whose publisher takes its time."""
        for execution_id, group in groupby(events, key=lambda placed: placed.head.execution_id):
            own = list(group)
            for placed in own:
                self.note(f"{execution_id} v{placed.stored.stream_version} {placed.prepared.draft.event_type}")
            head = own[0].head
            subject = event_subject(
                tenant_id=head.tenant_id,
                organization_id=head.organization_id,
                execution_id=execution_id,
                shard=head.shard,
            )
            # Some together and some alone, as the rows of an outbox name them.
            together = self.place.chance.random() < 0.5
            stored = [placed.stored for placed in own]
            for run in [stored] if together else [[one] for one in stored]:
                body, headers = pack_events(run, "")
                message_id = f"{execution_id}/{run[0].stream_version}+{len(run)}"
                self._send(Message(subject=subject, message_id=message_id, body=body, headers=headers))
        for number, hint in enumerate(self.log.hints[self._hints_seen :], start=self._hints_seen):
            self._send(Message(subject=hint.subject, message_id=hint.message_id or f"hint/{number}", body=hint.body))
        self._hints_seen = len(self.log.hints)

    def _send(self, message: Message) -> None:
        seconds = 0.002 + self.place.chance.random() * 0.01
        self.loop.call_later(seconds, self.place.bus.take, message, context=NOBODY)

    def note(self, line: str) -> None:
        """Remember that something has happened now."""
        self.trace.append(f"{self.loop.time():9.3f} {line}")

    def _now(self) -> datetime:
        return MIDNIGHT + timedelta(seconds=self.loop.time())


class ObservedLog:
    """The log as api sees it, watched: whoever writes with a fence must own the shard at that moment."""

    def __init__(self, log: InMemoryEventLog, leases: InMemoryShardLeases, world: World) -> None:
        self.read = log.read
        self.moved_heads = log.moved_heads
        self.open_descendants = log.open_descendants
        self.has_children = log.has_children
        self._log = log
        self._leases = leases
        self._world = world

    async def commit(self, requests: Sequence[PreparedRequest], *, at: datetime | None = None) -> list[Outcome]:
        """Commit, and remember what is said about it."""
        outcomes = await self._log.commit(requests, at=at)
        for prepared, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, NoetlError):
                if isinstance(outcome, Fenced):
                    self._world.note(f"refused: {outcome.message}")
                continue
            self._check_fence(prepared, outcome)
            places = [stream.append.execution_id for stream in prepared.streams for _ in stream.drafts]
            self._world.acknowledged += [
                (execution_id, appended.event.stream_version, appended.event.checksum)
                for execution_id, appended in zip(places, outcome, strict=False)
                if not appended.duplicate
            ]
        return outcomes

    def _check_fence(self, prepared: PreparedRequest, outcome: Sequence[Appended]) -> None:
        if all(appended.duplicate for appended in outcome):
            return
        for fence in prepared.request.fences:
            current = self._leases.epoch(fence.role, fence.shard)
            if fence.epoch != current:
                self._world.seen.append(
                    f"a {fence.role} of epoch {fence.epoch} wrote for shard {fence.shard} in epoch {current}"
                )


async def _idle(node: Node) -> None:
    """A database does nothing by itself."""


async def _live(user: User, node: Node) -> None:
    await user.live()


def _version(document: str) -> NewVersion:
    sha256 = sha256_hex(document.encode())
    name = document.split("name: ", 1)[1].split(",", maxsplit=1)[0].split("}", maxsplit=1)[0].strip()
    return NewVersion(
        catalog_id=str(7_000_000_000_000_000_000 + int(sha256[:8], 16)),
        path=name,
        name=name,
        content=document,
        sha256=sha256,
        created_by="sim",
    )
