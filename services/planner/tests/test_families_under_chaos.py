"""Parents that wait for children, with everything going wrong at once: nobody waits for ever, nothing happens twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.start_execution import StartExecution, StartRequest
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import Appended, AppendRequest
from noetl_core.canonical import decode
from noetl_core.children.state import ParkedCall, StartingCall, call_id
from noetl_core.commands.state import CommandStatus
from noetl_core.envelope import verify_link
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.execution_view import late_after
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.event_log import EventPage, Scope
from noetl_planner.application.actors import Actors
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.chaos import SCOPE, ChaosWorld
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.until import until

Answer = TypeVar("Answer")
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


class World(ChaosWorld):
    """Workers that start children and wait for them, and die now and then."""

    def __init__(self, seed: int, *, trouble: float = 0.1) -> None:
        super().__init__(seed, trouble=trouble)
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

    async def begin(self) -> None:
        await self.catalog.register(SCOPE, CHILD)
        await self.catalog.register(SCOPE, PARENT)
        self.stand = await self.payloads.put(
            tenant_id="t", organization_id="o", data=b"{}", media_type="application/json"
        )
        self.planners = [self.planner(), self.planner()]
        trouble, self.flaky.trouble = self.flaky.trouble, 0.0
        self.execution_id = (await self.start(SERVICE, SCOPE, StartRequest(path="parent"))).execution_id
        self.flaky.trouble = trouble

    def types(self, execution_id: int) -> Counter[str]:
        return Counter(event.envelope().event_type for event in self.log.streams[execution_id].events)

    def children(self) -> list[int]:
        return [one for one in self.log.streams if one != self.execution_id]

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


def whole(world: World) -> None:
    for stream in world.log.streams.values():
        assert [event.stream_version for event in stream.events] == list(range(1, len(stream.events) + 1))
        for event in stream.events:
            verify_link(event)


@pytest.mark.parametrize("seed", range(8))
async def test_every_call_has_one_child_and_every_child_is_waited_for_once(seed: int) -> None:
    world = World(seed)
    await world.begin()
    await world.live()

    whole(world)
    parent = world.types(world.execution_id)
    assert parent["playbook.completed"] == 1
    assert parent["child.started"] == 2 * CALLS_A_STEP == len(world.children())
    assert parent["command.resumed"] == 2 * CALLS_A_STEP
    entered = Counter(
        event.envelope().node_name
        for event in world.log.streams[world.execution_id].events
        if event.envelope().event_type == "step.enter"
    )
    assert entered == Counter({"a": 1, "left": 1, "right": 1, "end": 1})
    for child in world.children():
        assert world.types(child)["playbook.completed"] == 1
    state = world.state()
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
                await world.cancel(SERVICE, SCOPE, world.execution_id)
            except Unavailable:
                continue
            except NoetlError:
                return
            return

    await asyncio.gather(work(), cancel())
    for planner in world.planners:
        await planner.stop()

    whole(world)
    ended = world.types(world.execution_id)
    assert ended["execution.cancelled"] + ended["playbook.completed"] == 1
    if ended["execution.cancelled"]:
        assert world.is_over()


class DyingLog:
    """The log of an api that is killed at one of its calls, before or after it took effect."""

    def __init__(self, log: InMemoryEventLog, *, at_call: int, after: bool) -> None:
        self._log = log
        self._left = at_call
        self._after = after

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        return await self._do(self._log.append(request))

    async def read(self, scope: Scope | None, execution_id: int, **options: Any) -> EventPage:
        return await self._do(self._log.read(scope, execution_id, **options))

    async def moved_heads(self, shards: Sequence[int], **options: Any) -> Any:
        raise AssertionError("api compares no heads")

    async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
        return await self._do(self._log.open_descendants(execution_id, limit=1))  # so that there are several rounds

    async def has_children(self, execution_id: int) -> bool:
        return await self._do(self._log.has_children(execution_id))

    async def _do(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        self._left -= 1
        if self._left == 0 and not self._after:
            call.close()
            raise Killed
        answer = await call
        if self._left == 0:
            raise Killed
        return answer


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at_call", range(1, 9))
async def test_a_cascade_whose_api_is_killed_anywhere_is_seen_to_the_end_by_a_reaper(at_call: int, after: bool) -> None:
    world = World(at_call, trouble=0.0)
    await world.begin()
    worker = Worker(worker_id="w")
    while len(world.children()) < 2:
        world.sweep()
        await world.work_once(worker)
        await asyncio.sleep(0)
    dying = DyingLog(world.log, at_call=at_call, after=after)

    with suppress(Killed):  # where few children are left there are few calls
        await CancelExecution(dying, dying)(SERVICE, SCOPE, world.execution_id)
    is_cancelled = world.types(world.execution_id)["execution.cancelled"] == 1
    late = late_after(world.state())
    while is_cancelled and late is not None:  # as the projection lists it, and the reaper deals with it
        world.sweep()
        world.now = max(world.now, late)
        told = await world.any_planner().pass_deadlines(world.execution_id, through=late)
        if told.cascades:
            await world.cancel(SERVICE, SCOPE, world.execution_id)
        late = late_after(world.state())
    await world.stop()

    whole(world)
    assert world.is_over() is is_cancelled, "nothing was ended, or everything is"


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
    await until(lambda: world.state().execution.answered)
    world.log.hints.clear()
    await planner.park(worker, command.key, call, timeout_seconds=60.0)

    parked = world.state().commands[command.key.command_id]
    assert parked.status is CommandStatus.RESUMED
    assert parked.parked is not None
    assert parked.parked.status == "cancelled"
    assert not world.state().execution.answered
    assert [decode(hint.body) for hint in world.log.hints] == [
        {"execution_id": str(world.execution_id), "command_id": command.key.command_id}
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
    await until(lambda: world.state().commands[command.key.command_id].is_claimable)
    (claimed,) = await planner.claim(worker, [command.key])
    assert claimed.command is not None

    held = world.state().commands[command.key.command_id]
    assert held.lease_until is not None
    world.now = held.lease_until
    await planner.abandon(
        command.key, expected_aggregate_version=held.aggregate_version, lease_until=held.lease_until, reclaimer="r"
    )

    (following,) = [one for one in world.state().commands.values() if one.step == "left" and one.attempt == 2]
    assert following.parked == held.parked
    (granted,) = await planner.claim(
        Worker(worker_id="another"), [CommandKey(execution_id=world.execution_id, command_id=following.command_id)]
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
    deadline = world.state().commands[command.key.command_id].deadline
    assert deadline is not None
    world.now = deadline
    world.log.hints.clear()

    passed = await planner.pass_deadlines(world.execution_id, through=deadline)

    assert passed.passed == 1
    resumed = world.state().commands[command.key.command_id]
    assert resumed.is_claimable
    assert resumed.parked is not None
    assert resumed.parked.status == "timeout"
    assert len(world.log.hints) == 1
    child = int(call.child_execution_id)
    assert not world.log.streams[child].head.terminal
    await world.cancel(SERVICE, SCOPE, child)
    world.sweep()
    await until(lambda: world.types(world.execution_id)["command.resumed"] == 2)
    late = world.state()
    assert late.commands[command.key.command_id].parked == resumed.parked
    assert not late.execution.answered
    await planner.stop()


async def _claim_step(world: World, planner: Actors, worker: Worker, step: str) -> GrantedCommand:
    """Bring the parent to where a step is claimed."""
    while True:
        await until(lambda: any(one.is_claimable for one in world.state().commands.values()))
        for command in world.state().commands.values():
            if command.is_claimable and command.step in ("a", step):
                key = CommandKey(execution_id=world.execution_id, command_id=command.command_id)
                (outcome,) = await planner.claim(worker, [key])
                assert outcome.command is not None
                if command.step == step:
                    return outcome.command
                result: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}
                await planner.complete(worker, key, result, wants_next=False)
