"""Streams with two planners, killed workers, chunks told twice and to anybody: each counts once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.append import Appended, AppendRequest, Fence, PlacedEvent, StreamAppend, StreamStart
from noetl_core.canonical import decode
from noetl_core.catalog import to_draft
from noetl_core.commands.state import CommandStatus
from noetl_core.envelope import StoredEvent
from noetl_core.errors import InvalidInput, LeaseLost, NoetlError, Unavailable
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.fold import State, empty, fold_all
from noetl_core.payloads import refer_to
from noetl_core.ports.commands import CommandKey, GrantedCommand, ToldChunk, Worker
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.recorded import record
from noetl_core.streams.state import MAX_WAITING
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.turn import TurnRules
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until

SCOPE = Scope(tenant_id="t", organization_id="o")
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chaos}
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {chunk_rows: 10}}}
  next: {arcs: [{step: take, on: call.partial}, {step: after}]}
- {step: take, tool: {kind: noop}, next: {arcs: [{step: after}]}}
- {step: after, tool: {kind: noop}}
"""
CHUNKS = 9
OK: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}


def chunk_of(index: int, *, call: int = 0) -> ToldChunk:
    rows = refer_to(f"{call}/{index}".encode(), tenant_id="t", organization_id="o", media_type="application/json")
    last = index == CHUNKS - 1
    return ToldChunk(task="read_task", call=call, chunk_index=index, row_count=10, has_more=not last, rows=rows)


class FlakyLog:
    """The log over a bad network: some calls never arrive, some answers never come back."""

    def __init__(self, log: InMemoryEventLog, chance: random.Random, trouble: float) -> None:
        self.log = log
        self._chance = chance
        self._trouble = trouble

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        await self._maybe_fail()
        appended = await self.log.append(request)
        await self._maybe_fail()
        return appended

    async def read(self, scope: Scope | None, execution_id: int, **options: Any) -> EventPage:
        await self._maybe_fail()
        return await self.log.read(scope, execution_id, **options)

    async def moved_heads(self, shards: Sequence[int], **options: Any) -> Any:
        return await self.log.moved_heads(shards, **options)

    async def _maybe_fail(self) -> None:
        await asyncio.sleep(0)
        if self._chance.random() < self._trouble:
            raise Unavailable("the network ate it")


class World:
    """Everything but the planners' own code."""

    def __init__(self, seed: int, *, trouble: float = 0.1) -> None:
        self.chance = random.Random(seed)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.log = InMemoryEventLog(clock=self.tick)
        self.flaky = FlakyLog(self.log, self.chance, trouble)
        self.catalog = InMemoryCatalog()
        self.payloads = InMemoryPayloadStore()
        self.planners: list[Actors] = []
        self.late: list[tuple[int, StoredEvent]] = []
        self.execution_id = self.log.next_id()
        self.log.on_commit.append(self.deliver)
        self.reading: dict[str, int] = {}
        self.longest_queue = 0

    def tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    async def begin(self) -> None:
        entry = (await self.catalog.register(SCOPE, PLAYBOOK)).entry
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
        load_plan = LoadPlan(PinnedPlaybooks(self.catalog), self.payloads, max_attempts=50)
        rules = TurnRules(lease_seconds=10.0, now=self.tick, work_subject=lambda pool, kind: f"{pool}.{kind}")

        def make(execution_id: int, shard: int) -> Actor:
            return Actor(
                execution_id,
                shard=shard,
                log=self.flaky,
                load_plan=load_plan,
                rules=rules,
                fence=lambda shard: Fence(role="planner", shard=shard, epoch=0),
                producer="urn:test",
                metrics=metrics,
                retry_seconds=(0.0,),
                failure_seconds=(0.0,),
            )

        return Actors(
            shard_count=64, owns=lambda shard: True, owner_address=lambda shard: None, make_actor=make, metrics=metrics
        )

    def deliver(self, events: Sequence[PlacedEvent]) -> None:
        for placed in events:
            for index in range(len(self.planners)):
                self.late += [(index, placed.stored)] * self.chance.choice((0, 1, 1, 2))
        queue = self.state().execution.streams.get("read")
        self.longest_queue = max(self.longest_queue, len(queue.waiting) if queue else 0)

    def deliver_some(self) -> None:
        self.chance.shuffle(self.late)
        for _ in range(self.chance.randrange(len(self.late) + 1)):
            index, event = self.late.pop()
            self.planners[index].take(self.execution_id, event)

    async def kill_a_planner(self) -> None:
        index = self.chance.randrange(len(self.planners))
        killed, self.planners[index] = self.planners[index], self.planner()
        await killed.stop()

    def state(self) -> State:
        return fold_all(empty(self.execution_id), map(record, self.events()))

    def events(self) -> list[StoredEvent]:
        return self.log.streams[self.execution_id].events

    def any_planner(self) -> Actors:
        return self.chance.choice(self.planners)

    async def work_once(self, worker: Worker) -> None:
        """Claim whatever was hinted at, and run it; a command that streams goes on with the worker's next turn."""
        keys = [
            CommandKey(execution_id=self.execution_id, command_id=str(hint["command_id"]))
            for hint in (decode(one.body) for one in self.log.hints)
            if isinstance(hint, dict)
        ]
        try:
            outcomes = await self.any_planner().claim(worker, self.chance.sample(keys, min(2, len(keys))))
        except NoetlError:
            return
        for outcome in outcomes:
            command = outcome.command
            while command is not None:
                command = await self.run(worker, command)

    async def run(self, worker: Worker, command: GrantedCommand) -> GrantedCommand | None:
        if self.chance.random() < 0.1:
            return None  # The worker was killed.
        if command.step == "read" and not await self.stream(worker, command):
            return None
        following: GrantedCommand | None = None
        for _ in range(self.chance.choice((1, 2))):
            try:
                completion = await self.any_planner().complete(
                    worker, command.key, OK, wants_next=self.chance.random() < 0.7
                )
                following = completion.next or following
            except NoetlError:
                continue
        return following

    async def stream(self, worker: Worker, command: GrantedCommand) -> bool:
        """Tell a few chunks, beginning where earlier attempts stopped; True when all have been told."""
        place = self.reading.get(command.key.command_id, command.streamed.chunk)
        for index in range(place, min(place + self.chance.choice((1, 2, 5)), CHUNKS)):
            for _ in range(self.chance.choice((1, 1, 3))):
                try:
                    if not await self.any_planner().tell_chunk(worker, command.key, chunk_of(index)):
                        return False
                except NoetlError:
                    return False
            self.reading[command.key.command_id] = index + 1
        return self.reading.get(command.key.command_id, place) == CHUNKS

    async def reap(self) -> None:
        """Every claim that is open is taken to be silent now and then, rightly or wrongly."""
        for command in self.state().commands.values():
            if command.status in (CommandStatus.CLAIMED, CommandStatus.STARTED) and self.chance.random() < 0.2:
                try:
                    await self.any_planner().abandon(
                        CommandKey(execution_id=self.execution_id, command_id=command.command_id),
                        expected_aggregate_version=command.aggregate_version,
                        lease_until=self.now,
                        reclaimer="urn:test:reaper",
                    )
                except NoetlError:
                    continue

    def sweep(self) -> None:
        head = self.log.streams[self.execution_id].head
        for planner in self.planners:
            planner.expect(self.execution_id, head.version, terminal=head.terminal)


async def live(world: World) -> None:
    await world.begin()
    workers = [Worker(worker_id=f"w{number}") for number in range(3)]
    for turn in range(3000):
        if world.log.streams[world.execution_id].head.terminal:
            return
        world.deliver_some()
        await asyncio.gather(*(world.work_once(worker) for worker in workers))
        if turn % 3 == 2:
            world.sweep()
            await world.reap()
        if world.chance.random() < 0.05:
            await world.kill_a_planner()
        await asyncio.sleep(0)
    raise AssertionError("the execution did not end")


@pytest.mark.parametrize("seed", range(25))
async def test_every_chunk_is_told_and_taken_once_and_in_order_whatever_goes_wrong(seed: int) -> None:
    world = World(seed)
    try:
        await live(world)
    finally:
        for planner in world.planners:
            await planner.stop()

    envelopes = [event.envelope() for event in world.events()]
    told = [one.meta["chunk_index"] for one in envelopes if one.event_type == "call.partial"]
    taken = [
        one.meta["chunk"]["chunk_index"]  # type: ignore[index,call-overload]
        for one in envelopes
        if one.event_type == "step.enter" and one.node_name == "take"
    ]
    kinds = Counter(one.event_type for one in envelopes)
    exits = Counter(one.node_name for one in envelopes if one.event_type == "step.exit")
    assert told == list(range(CHUNKS))
    assert taken == list(range(CHUNKS))
    assert kinds["step.chunk"] == CHUNKS
    assert exits == {"read": 1, "take": CHUNKS, "after": 1}
    assert kinds["playbook.completed"] == 1
    assert world.longest_queue <= MAX_WAITING


async def quiet_world() -> tuple[World, Worker, GrantedCommand]:
    world = World(1, trouble=0.0)
    await world.begin()
    world.planners = world.planners[:1]
    planner, worker = world.planners[0], Worker(worker_id="w")
    planner.take(world.execution_id, world.events()[0])
    await until(lambda: world.log.hints)
    hint = decode(world.log.hints[0].body)
    assert isinstance(hint, dict)
    key = CommandKey(execution_id=world.execution_id, command_id=str(hint["command_id"]))
    (outcome,) = await planner.claim(worker, [key])
    assert outcome.command is not None
    return world, worker, outcome.command


async def test_a_worker_is_told_to_wait_while_too_many_chunks_do_and_goes_on_when_one_is_taken() -> None:
    world, worker, command = await quiet_world()
    planner = world.planners[0]
    index = 0
    while await planner.tell_chunk(worker, command.key, chunk_of(index)):
        index += 1
    before = len(world.events())

    assert index == MAX_WAITING + 1  # one is being taken
    assert not await planner.tell_chunk(worker, command.key, chunk_of(index))
    assert len(world.events()) == before
    take = next(one for one in world.state().commands.values() if one.step == "take")
    key = CommandKey(execution_id=world.execution_id, command_id=take.command_id)
    (claimed,) = await planner.claim(worker, [key])
    assert claimed.command is not None
    assert claimed.command.chunk is not None
    assert claimed.command.chunk.scalars == {"chunk_index": 0, "row_count": 10, "has_more": True}
    await planner.complete(worker, key, OK, wants_next=False)

    assert await planner.tell_chunk(worker, command.key, chunk_of(index))
    await planner.stop()


async def test_a_chunk_out_of_turn_or_of_a_stranger_changes_nothing() -> None:
    world, worker, command = await quiet_world()
    planner = world.planners[0]
    assert await planner.tell_chunk(worker, command.key, chunk_of(0))
    before = len(world.events())

    with pytest.raises(InvalidInput):
        await planner.tell_chunk(worker, command.key, chunk_of(5))
    with pytest.raises(LeaseLost):
        await planner.tell_chunk(Worker(worker_id="eve"), command.key, chunk_of(1))
    assert await planner.tell_chunk(worker, command.key, chunk_of(0))  # again: it is known
    assert len(world.events()) == before
    await planner.stop()
