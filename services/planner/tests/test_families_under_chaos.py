"""Parents that wait for children, with everything going wrong at once: nobody waits for ever, nothing happens twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.start_execution import StartExecution, StartRequest
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import Appended, AppendRequest, Fence, PlacedEvent
from noetl_core.canonical import decode
from noetl_core.children.state import ParkedCall, StartingCall, call_id
from noetl_core.commands.state import CommandStatus
from noetl_core.envelope import StoredEvent, verify_link
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.fold import State, empty, fold_all
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.recorded import record
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.turn import TurnRules
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until

SCOPE = Scope(tenant_id="t", organization_id="o")
SERVICE = Caller(name="worker", tenant_id="*", organization_id="*", role=Role.SERVICE)
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s}\nworkflow:\n"
PARENT = (
    HEAD % "parent"
    + """\
- step: a
  tool: {kind: noop}
  next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}]}
- {step: left, tool: {kind: playbook, path: child, return_step: x}, next: {arcs: [{step: end}]}}
- {step: right, tool: {kind: playbook, path: child, return_step: x}, next: {arcs: [{step: end}]}}
- {step: end, tool: {kind: noop}}
"""
)
CHILD = (
    HEAD % "child"
    + """\
- {step: x, tool: {kind: noop}, next: {arcs: [{step: y}]}}
- {step: y, tool: {kind: noop}}
"""
)
CALLS_A_STEP = 2
"""Each waiting step calls two children, one after the other, as a pipeline of two tasks does."""


class FlakyLog:
    """The log over a bad network: some calls never arrive, some answers never come back."""

    def __init__(self, log: InMemoryEventLog, chance: random.Random, trouble: float) -> None:
        self.log = log
        self._chance = chance
        self.trouble = trouble

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

    async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
        await self._maybe_fail()
        return await self.log.open_descendants(execution_id, limit=limit)

    async def has_children(self, execution_id: int) -> bool:
        await self._maybe_fail()
        return await self.log.has_children(execution_id)

    async def _maybe_fail(self) -> None:
        await asyncio.sleep(0)
        if self._chance.random() < self.trouble:
            raise Unavailable("the network ate it")


class World:
    """Everything but the planners' and api's own code."""

    def __init__(self, seed: int, *, trouble: float = 0.1) -> None:
        self.chance = random.Random(seed)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.log = InMemoryEventLog(clock=self.tick)
        self.flaky = FlakyLog(self.log, self.chance, trouble)
        self.catalog = InMemoryCatalog()
        self.payloads = InMemoryPayloadStore()
        self.planners: list[Actors] = []
        self.late: list[tuple[int, int, StoredEvent]] = []
        self.root = 0
        self.start = StartExecution(
            log=self.flaky,
            catalog=self.catalog,
            parsed=ParsedPlaybooks(),
            payloads=self.payloads,
            next_id=self.log.next_id,
            clock=self.tick,
            playbook_env={},
            metrics=ApiMetrics(MetricSet()),
        )
        self.cancel = CancelExecution(self.flaky, self.flaky)

    def tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    async def begin(self) -> None:
        await self.catalog.register(SCOPE, CHILD)
        await self.catalog.register(SCOPE, PARENT)
        self.stand = await self.payloads.put(
            tenant_id="t", organization_id="o", data=b"{}", media_type="application/json"
        )
        self.planners = [self.planner(), self.planner()]
        self.log.on_commit.append(self.deliver)
        trouble, self.flaky.trouble = self.flaky.trouble, 0.0
        self.root = (await self.start(SERVICE, SCOPE, StartRequest(path="parent"))).execution_id
        self.flaky.trouble = trouble

    def planner(self) -> Actors:
        metrics = PlannerMetrics(MetricSet())
        load_plan = LoadPlan(PinnedPlaybooks(self.catalog), self.payloads, max_attempts=100)
        rules = TurnRules(
            lease_seconds=10.0, now=self.tick, work_subject=lambda pool, kind: f"noetl.work.{pool}.{kind}"
        )

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
                for _ in range(self.chance.choice((0, 1, 1, 2))):
                    self.late.append((index, placed.head.execution_id, placed.stored))

    def deliver_some(self) -> None:
        self.chance.shuffle(self.late)
        for _ in range(self.chance.randrange(len(self.late) + 1)):
            index, execution_id, event = self.late.pop()
            self.planners[index].take(execution_id, event)

    def sweep(self) -> None:
        for execution_id, stream in self.log.streams.items():
            for planner in self.planners:
                planner.expect(execution_id, stream.head.version, terminal=stream.head.terminal)

    async def kill_a_planner(self) -> None:
        index = self.chance.randrange(len(self.planners))
        killed, self.planners[index] = self.planners[index], self.planner()
        await killed.stop()

    def any_planner(self) -> Actors:
        return self.chance.choice(self.planners)

    def state(self, execution_id: int) -> State:
        return fold_all(empty(execution_id), map(record, self.log.streams[execution_id].events))

    def types(self, execution_id: int) -> Counter[str]:
        return Counter(event.envelope().event_type for event in self.log.streams[execution_id].events)

    def children(self) -> list[int]:
        return [one for one in self.log.streams if one != self.root]

    def is_over(self) -> bool:
        return all(stream.head.terminal for stream in self.log.streams.values())

    async def work_once(self, worker: Worker) -> None:
        """Claim what can be claimed, as hints, lost ones repeated, would have it."""
        keys = [
            CommandKey(execution_id=execution_id, command_id=command.command_id)
            for execution_id, stream in list(self.log.streams.items())
            if not stream.head.terminal
            for command in self.state(execution_id).commands.values()
            if command.is_claimable or self.chance.random() < 0.1
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
        if command.step in ("left", "right"):
            call = await self.next_call(command)
            if call is not None:
                await self.park(worker, command, call)
                return None
        result: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}
        following: GrantedCommand | None = None
        for _ in range(self.chance.choice((1, 2, 3))):
            with suppress(NoetlError):
                completion = await self.any_planner().complete(
                    worker, command.key, result, wants_next=self.chance.random() < 0.7
                )
                following = completion.next or following
        return following

    async def next_call(self, command: GrantedCommand) -> ParkedCall | None:
        """A pipeline of two calls: the number of the one that was answered stands in for its state."""
        done = 0
        if command.parked is not None:
            assert command.parked.status == "completed"
            done = command.parked.pipeline.bytes - 1000
        if done == CALLS_A_STEP:
            return None
        call = call_id(command_key=command.idempotency_key, label=f"task_{done}", run=1)
        starting = StartingCall(
            call_id=call, command_id=command.key.command_id, step=command.step, pool=command.pool, waits=True
        )
        request = StartRequest(path="child", parent_execution_id=command.key.execution_id, parent_call=starting)
        while True:
            try:
                child = await self.start(SERVICE, SCOPE, request)
            except Unavailable:
                continue
            except NoetlError:
                return None
            return ParkedCall(
                call_id=call, child_execution_id=str(child.execution_id), pipeline=self.stand_after(done + 1)
            )

    def stand_after(self, done: int) -> PayloadRef:
        return replace(self.stand, bytes=1000 + done)

    async def park(self, worker: Worker, command: GrantedCommand, call: ParkedCall) -> None:
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):  # 0: the worker was killed before it could say so
            if self.chance.random() < 0.3:  # the child may end before
                await asyncio.gather(*(self.work_once(Worker(worker_id=f"other{n}")) for n in range(2)))
            with suppress(NoetlError):
                await self.any_planner().park(worker, command.key, call, timeout_seconds=1e9)

    async def reap(self) -> None:
        for execution_id in list(self.log.streams):
            for command in self.state(execution_id).commands.values():
                if command.status in (CommandStatus.CLAIMED, CommandStatus.STARTED) and self.chance.random() < 0.3:
                    with suppress(NoetlError):
                        await self.any_planner().abandon(
                            CommandKey(execution_id=execution_id, command_id=command.command_id),
                            expected_aggregate_version=command.aggregate_version,
                            lease_until=self.now,
                            reclaimer="urn:test:reaper",
                        )


async def live(world: World, *, turns: int = 3000) -> None:
    workers = [Worker(worker_id=f"w{number}") for number in range(3)]
    for turn in range(turns):
        if world.is_over():
            return
        world.deliver_some()
        await asyncio.gather(*(world.work_once(worker) for worker in workers))
        if turn % 3 == 2:
            world.sweep()
            await world.reap()
        if world.chance.random() < 0.05:
            await world.kill_a_planner()
        await asyncio.sleep(0)
    raise AssertionError("somebody waits for ever")


def whole(world: World) -> None:
    for stream in world.log.streams.values():
        assert [event.stream_version for event in stream.events] == list(range(1, len(stream.events) + 1))
        for event in stream.events:
            verify_link(event)


@pytest.mark.parametrize("seed", range(8))
async def test_every_call_has_one_child_and_every_child_is_waited_for_once(seed: int) -> None:
    world = World(seed)
    await world.begin()
    try:
        await live(world)
    finally:
        for planner in world.planners:
            await planner.stop()

    whole(world)
    parent = world.types(world.root)
    assert parent["playbook.completed"] == 1
    assert parent["child.started"] == 2 * CALLS_A_STEP == len(world.children())
    assert parent["command.resumed"] == 2 * CALLS_A_STEP
    entered = Counter(
        event.envelope().node_name
        for event in world.log.streams[world.root].events
        if event.envelope().event_type == "step.enter"
    )
    assert entered == Counter({"a": 1, "left": 1, "right": 1, "end": 1})
    for child in world.children():
        assert world.types(child)["playbook.completed"] == 1
    state = world.state(world.root)
    assert not state.execution.answered
    assert all(not command.is_open for command in state.commands.values())


@pytest.mark.parametrize("seed", range(8))
async def test_a_cancelled_parent_leaves_no_child_running_whoever_starts_one_meanwhile(seed: int) -> None:
    world = World(seed)
    await world.begin()
    workers = [Worker(worker_id=f"w{number}") for number in range(2)]

    async def work() -> None:
        for _ in range(30):
            world.deliver_some()
            world.sweep()
            await asyncio.gather(*(world.work_once(worker) for worker in workers))

    async def cancel() -> None:
        for _ in range(seed * 3):
            await asyncio.sleep(0)
        while True:  # the caller repeats what was not answered
            try:
                await world.cancel(SERVICE, SCOPE, world.root)
            except Unavailable:
                continue
            except NoetlError:
                return
            return

    await asyncio.gather(work(), cancel())
    for planner in world.planners:
        await planner.stop()

    whole(world)
    ended = world.types(world.root)
    assert ended["execution.cancelled"] + ended["playbook.completed"] == 1
    if ended["execution.cancelled"]:
        assert world.is_over()


async def test_a_child_that_ends_before_its_parent_is_parked_is_heard_all_the_same() -> None:
    world = World(1, trouble=0.0)
    await world.begin()
    planner = world.planners[0]
    world.planners = [planner]
    worker = Worker(worker_id="w")
    world.sweep()
    await until(lambda: world.log.hints)
    command = await _claim_step(world, planner, worker, "left")
    call = await world.next_call(command)
    assert call is not None
    child = int(call.child_execution_id)

    await world.cancel(SERVICE, SCOPE, child)
    world.sweep()
    await until(lambda: world.state(world.root).execution.answered)
    world.log.hints.clear()
    await planner.park(worker, command.key, call, timeout_seconds=60.0)

    parked = world.state(world.root).commands[command.key.command_id]
    assert parked.status is CommandStatus.RESUMED
    assert parked.parked is not None
    assert parked.parked.status == "cancelled"
    assert not world.state(world.root).execution.answered
    assert [decode(hint.body) for hint in world.log.hints] == [
        {"execution_id": str(world.root), "command_id": command.key.command_id}
    ]
    (again,) = await planner.claim(Worker(worker_id="another"), [command.key])
    assert again.command is not None
    assert again.command.parked == parked.parked
    await planner.stop()


async def test_a_worker_that_dies_after_the_child_has_ended_costs_an_attempt_and_not_the_child() -> None:
    world = World(1, trouble=0.0)
    await world.begin()
    planner = world.planners[0]
    world.planners = [planner]
    worker = Worker(worker_id="w")
    world.sweep()
    command = await _claim_step(world, planner, worker, "left")
    call = await world.next_call(command)
    assert call is not None
    await planner.park(worker, command.key, call, timeout_seconds=60.0)
    (refused,) = await planner.claim(worker, [command.key])
    assert refused.refusal == "command.parked"
    beats = await planner.heartbeat(worker, [command.key])
    assert beats.lost == {command.key}
    await world.cancel(SERVICE, SCOPE, int(call.child_execution_id))
    world.sweep()
    await until(lambda: world.state(world.root).commands[command.key.command_id].is_claimable)
    (claimed,) = await planner.claim(worker, [command.key])
    assert claimed.command is not None

    held = world.state(world.root).commands[command.key.command_id]
    assert held.lease_until is not None
    world.now = held.lease_until
    await planner.abandon(
        command.key, expected_aggregate_version=held.aggregate_version, lease_until=held.lease_until, reclaimer="r"
    )

    (following,) = [one for one in world.state(world.root).commands.values() if one.step == "left" and one.attempt == 2]
    assert following.parked == held.parked
    (granted,) = await planner.claim(
        Worker(worker_id="another"), [CommandKey(execution_id=world.root, command_id=following.command_id)]
    )
    assert granted.command is not None
    assert granted.command.parked is not None
    assert granted.command.parked.status == "cancelled"
    await planner.stop()


async def test_a_wake_up_that_overtakes_the_answer_is_not_lost() -> None:
    world = World(1, trouble=0.0)
    await world.begin()
    planner = world.planners[0]
    world.planners = [planner]
    worker = Worker(worker_id="w")
    world.sweep()
    command = await _claim_step(world, planner, worker, "left")
    call = await world.next_call(command)
    assert call is not None
    await planner.park(worker, command.key, call, timeout_seconds=60.0)

    await world.cancel(SERVICE, SCOPE, int(call.child_execution_id))  # and the bus delivers nothing
    (claimed,) = await planner.claim(worker, [command.key])

    assert claimed.command is not None
    await planner.stop()


async def test_a_call_that_has_waited_long_enough_goes_on_and_its_child_too() -> None:
    world = World(1, trouble=0.0)
    await world.begin()
    planner = world.planners[0]
    world.planners = [planner]
    worker = Worker(worker_id="w")
    world.sweep()
    command = await _claim_step(world, planner, worker, "left")
    call = await world.next_call(command)
    assert call is not None
    await planner.park(worker, command.key, call, timeout_seconds=60.0)
    deadline = world.state(world.root).commands[command.key.command_id].deadline
    assert deadline is not None
    world.now = deadline
    world.log.hints.clear()

    passed = await planner.pass_deadlines(world.root, through=deadline)

    assert passed.passed == 1
    resumed = world.state(world.root).commands[command.key.command_id]
    assert resumed.is_claimable
    assert resumed.parked is not None
    assert resumed.parked.status == "timeout"
    assert len(world.log.hints) == 1
    child = int(call.child_execution_id)
    assert not world.log.streams[child].head.terminal
    await world.cancel(SERVICE, SCOPE, child)
    world.sweep()
    await until(lambda: world.types(world.root)["command.resumed"] == 2)
    late = world.state(world.root)
    assert late.commands[command.key.command_id].parked == resumed.parked
    assert not late.execution.answered
    await planner.stop()


async def _claim_step(world: World, planner: Actors, worker: Worker, step: str) -> GrantedCommand:
    """Bring the parent to where a step is claimed."""
    while True:
        await until(lambda: any(one.is_claimable for one in world.state(world.root).commands.values()))
        for command in world.state(world.root).commands.values():
            if command.is_claimable and command.step in ("a", step):
                key = CommandKey(execution_id=world.root, command_id=command.command_id)
                (outcome,) = await planner.claim(worker, [key])
                assert outcome.command is not None
                if command.step == step:
                    return outcome.command
                result: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}
                await planner.complete(worker, key, result, wants_next=False)
