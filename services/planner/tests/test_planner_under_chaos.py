"""Two planners at once, deliveries lost, doubled and late, answers lost, planners and workers killed: one history."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.append import END_KEY, Appended, AppendRequest, Fence, PlacedEvent, StreamAppend, StreamStart
from noetl_core.canonical import decode
from noetl_core.catalog import to_draft
from noetl_core.commands.state import CommandStatus
from noetl_core.envelope import StoredEvent, verify_link
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.executions.evaluate import evaluate
from noetl_core.executions.evaluation import Evaluation
from noetl_core.executions.events import ExecutionCancelled, PlaybookInitialized
from noetl_core.executions.names import LOADED
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.fold import State, empty, fold_all
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.ports.steering import SteerAction
from noetl_core.recorded import record
from noetl_core.sharding import shard_of
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
- step: a
  tool: {kind: noop}
  next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}, {step: never, when: "{{ false }}"}]}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ output.data.visit < 3 }}"}, {step: d}]}}
- step: c
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ a.rows | length != 3 }}", then: {allow: false}}]}}}
  next: {arcs: [{step: d}]}
- {step: never, tool: {kind: noop}}
- step: d
  tool: {kind: noop}
  set: {ctx.total: "{{ b.rows | sum }}"}
  next: {arcs: [{step: never, when: "{{ total != 6 }}"}, {step: e, when: "{{ output.data.rows | length == 3 }}"}]}
- step: e
  loop: {in: "{{ d.rows }}", spec: {mode: parallel, max_in_flight: 2}}
  tool: {kind: noop}
  next: {arcs: [{step: f, when: "{{ output.data.stats.success == 3 }}"}, {step: never}]}
- step: f
  loop: {in: [x, y]}
  tool: {kind: noop}
  next: {arcs: [{step: f, when: "{{ total < 8 }}", set: {ctx.total: "{{ total + 1 }}"}}]}
"""
DATA = {"rows": [1, 2, 3]}
"""What every step returns, and no event tells: conditions that read it are evaluated by workers."""
UNDISTURBED = Counter({"a": 1, "b": 3, "c": 1, "d": 1, "e": 1, "f": 3})
LOOPS = Counter({("e", "1"): 3, ("f", "1"): 2, ("f", "2"): 2, ("f", "3"): 2})
"""Items of each epoch."""


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

    async def _maybe_fail(self) -> None:
        await asyncio.sleep(0)
        if self._chance.random() < self.trouble:
            raise Unavailable("the network ate it")


class World:
    """Everything but the planners' own code."""

    def __init__(self, seed: int, *, trouble: float = 0.15) -> None:
        self.chance = random.Random(seed)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.log = InMemoryEventLog(clock=self.tick)
        self.flaky = FlakyLog(self.log, self.chance, trouble)
        self.catalog = InMemoryCatalog()
        self.payloads = InMemoryPayloadStore()
        self.planners: list[Actors] = []
        self.late: list[tuple[int, StoredEvent]] = []
        self.execution_id = self.log.next_id()
        self.ran: Counter[tuple[str, int, int]] = Counter()
        self.log.on_commit.append(self.deliver)

    def tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    async def begin(self) -> None:
        registered = await self.catalog.register(SCOPE, PLAYBOOK)
        ref = await self.payloads.put(tenant_id="t", organization_id="o", data=b"{}", media_type="application/json")
        entry = registered.entry
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
                    self.late.append((index, placed.stored))

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

    async def work_once(self, worker: Worker) -> None:
        """Claim whatever was hinted at, by any planner, run it, tell any planner, maybe twice, maybe never."""
        hints = [decode(hint.body) for hint in self.log.hints]
        keys = [
            CommandKey(execution_id=self.execution_id, command_id=str(hint["command_id"]))
            for hint in hints
            if isinstance(hint, dict)
        ]
        late, fresh = self.chance.sample(keys, min(1, len(keys))), self.chance.sample(keys[-5:], min(1, len(keys)))
        try:
            outcomes = await self.chance.choice(self.planners).claim(worker, list(dict.fromkeys([*late, *fresh])))
        except NoetlError:
            return
        for outcome in outcomes:
            command = outcome.command
            while command is not None:
                command = await self.run(worker, command)

    async def run(self, worker: Worker, command: GrantedCommand) -> GrantedCommand | None:
        self.ran[(command.step, command.activation, command.attempt)] += 1
        if self.chance.random() < 0.1:
            return None  # The worker was killed.
        context: dict[str, Any] = {"select": {"/visit": command.activation}, "unselected": ["/rows"]}
        if command.evaluation is not None:
            context = {"evaluation": self.evaluate(command, command.evaluation)}
        result = {"status": "ok", "reference": None, "parent_ref": None, "context": context}
        following: GrantedCommand | None = None
        for _ in range(self.chance.choice((1, 2, 3))):
            try:
                completion = await self.chance.choice(self.planners).complete(
                    worker, command.key, result, wants_next=self.chance.random() < 0.7
                )
                following = completion.next or following
            except NoetlError:
                continue
        return following

    def evaluate(self, command: GrantedCommand, evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
        steps = {
            name: Step(status=StepStatus.DONE, result={**result, LOADED: DATA})
            for name, result in command.results.items()
        }
        steps.setdefault(evaluation["step"], Step(status=StepStatus.ACTIVE, cause_step=command.cause_step))
        execution = Execution(execution_id=self.execution_id, steps=steps, variables=command.variables.values)
        playbook, _ = parse_playbook(PLAYBOOK)
        return evaluate(Evaluation.from_json(evaluation), execution, Plan(playbook=playbook)).told({})

    async def reap(self) -> None:
        """Every claim that is open is taken to be silent now and then, rightly or wrongly."""
        for command in self.state().commands.values():
            if command.status in (CommandStatus.CLAIMED, CommandStatus.STARTED) and self.chance.random() < 0.3:
                try:
                    await self.chance.choice(self.planners).abandon(
                        CommandKey(execution_id=self.execution_id, command_id=command.command_id),
                        expected_aggregate_version=command.aggregate_version,
                        lease_until=self.now,
                        reclaimer="urn:test:reaper",
                    )
                except NoetlError:
                    continue

    async def cancel(self) -> None:
        """What api appends when somebody ends the execution, whoever is in the middle of what."""
        ended = ExecutionCancelled(reason="enough", cancelled_by="test")
        stream = StreamAppend(execution_id=self.execution_id, drafts=(to_draft(ended, idempotency_key=END_KEY),))
        with suppress(NoetlError):
            await self.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))

    async def steer(self) -> None:
        """Somebody pauses or resumes, at any of the planners."""
        action = self.chance.choice((SteerAction.PAUSE, SteerAction.RESUME, SteerAction.RESUME))
        with suppress(NoetlError):
            await self.chance.choice(self.planners).steer(self.execution_id, action, by="test", reason="")

    def sweep(self) -> None:
        head = self.log.streams[self.execution_id].head
        for planner in self.planners:
            planner.expect(self.execution_id, head.version, terminal=head.terminal)


async def live(world: World, *, steered: bool = False) -> None:
    await world.begin()
    workers = [Worker(worker_id=f"w{number}") for number in range(3)]
    for turn in range(2000):
        if world.log.streams[world.execution_id].head.terminal:
            return
        world.deliver_some()
        await asyncio.gather(*(world.work_once(worker) for worker in workers))
        if turn % 3 == 2:
            world.sweep()
            await world.reap()
        if world.chance.random() < 0.05:
            await world.kill_a_planner()
        if steered and world.chance.random() < 0.4:
            await world.steer()
        await asyncio.sleep(0)
    raise AssertionError("the execution did not end")


@pytest.mark.parametrize("seed", range(30))
async def test_the_history_is_whole_and_every_activation_happens_once_whatever_goes_wrong(seed: int) -> None:
    world = World(seed)
    try:
        await live(world)
    finally:
        for planner in world.planners:
            await planner.stop()

    assert_whole(world)


@pytest.mark.parametrize("seed", range(12))
async def test_pauses_in_the_middle_of_it_hold_back_everything_and_lose_nothing(seed: int) -> None:
    world = World(seed)
    try:
        await live(world, steered=True)
    finally:
        for planner in world.planners:
            await planner.stop()

    assert_whole(world)
    is_paused = False
    for event in world.events():
        kind = event.envelope().event_type
        is_paused = kind == "execution.paused" or (is_paused and kind != "execution.resumed")
        assert not is_paused or kind not in ("step.enter", "step.exit", "command.issued", "command.claimed")


def assert_whole(world: World) -> None:
    """Every activation happened once, every attempt ended once, and the chain of the log holds."""
    events = world.events()
    assert [event.stream_version for event in events] == list(range(1, len(events) + 1))
    for event in events:
        verify_link(event)
    kinds = Counter(event.envelope().event_type for event in events)
    assert kinds["playbook.completed"] == 1
    assert kinds["playbook.failed"] == 0
    entered = Counter(e.envelope().node_name for e in events if e.envelope().event_type == "step.enter")
    assert entered == UNDISTURBED
    exits = Counter(
        (e.envelope().node_name, str(e.envelope().meta["activation"]))
        for e in events
        if e.envelope().event_type == "step.exit"
    )
    assert set(exits.values()) == {1}
    assert kinds["step.skipped"] == 1
    assert world.state().execution.variables == {"total": 8}
    assert_loops_are_whole(world)
    ends = Counter(
        e.envelope().command_id
        for e in events
        if e.envelope().event_type in ("command.completed", "command.failed", "command.abandoned")
    )
    assert set(ends.values()) == {1}
    assert set(ends) == {e.envelope().command_id for e in events if e.envelope().event_type == "command.issued"}


def assert_loops_are_whole(world: World) -> None:
    """Every item of every epoch has begun and ended once, never too many at once, and its loop is done once."""
    envelopes = [event.envelope() for event in world.events()]
    epochs = {f"loop_{world.execution_id}_{step}_{visit}": items for (step, visit), items in LOOPS.items()}
    wanted = Counter((loop_id, index) for loop_id, items in epochs.items() for index in range(items))
    for kind in ("loop.item", "call.done"):
        found = Counter(
            (one.meta["loop_id"], one.meta["loop_iteration_index"])
            for one in envelopes
            if one.event_type == kind and "loop_id" in one.meta
        )
        assert found == wanted, kind
    assert Counter(one.meta["loop_id"] for one in envelopes if one.event_type == "loop.done") == Counter([*epochs])
    running = 0
    for one in envelopes:
        if one.node_name == "e" and one.event_type in ("loop.item", "call.done"):
            running += 1 if one.event_type == "loop.item" else -1
            assert 0 <= running <= 2


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancelled_execution_stays_cancelled_and_leaves_no_planner_busy(seed: int) -> None:
    world = World(seed)
    await world.begin()
    workers = [Worker(worker_id=f"w{number}") for number in range(2)]
    for _ in range(seed % 5):
        world.deliver_some()
        await asyncio.gather(*(world.work_once(worker) for worker in workers))
    await world.cancel()
    world.flaky.trouble = 0.0
    calls: list[object] = []
    world.sweep()
    for index, event in [*world.late]:
        world.planners[index].take(world.execution_id, event)
    await until(lambda: not any(task.get_name().startswith("execution-") for task in asyncio.all_tasks()))
    world.log.on_commit.append(calls.append)

    for planner in world.planners:
        planner.let_go_of_ended()
        outcomes = await planner.claim(workers[0], [CommandKey(execution_id=world.execution_id, command_id="x")])
        assert outcomes[0].refusal == "execution.already_terminal"
        await planner.stop()

    kinds = Counter(event.envelope().event_type for event in world.events())
    assert kinds["execution.cancelled"] + kinds["playbook.completed"] == 1
    assert world.events()[-1].envelope().event_type in ("execution.cancelled", "playbook.completed")
    assert calls == []


async def test_without_trouble_a_chain_of_steps_costs_one_append_per_step_and_no_bus_hop() -> None:
    world = World(1, trouble=0.0)
    appends: list[int] = []
    world.log.on_commit.append(lambda events: appends.append(len(events)))
    await world.begin()
    planner, worker = world.planners[0], Worker(worker_id="w")
    world.planners = [planner]
    planner.take(world.execution_id, world.events()[0])
    await until(lambda: world.log.hints)
    hint = decode(world.log.hints[0].body)
    assert isinstance(hint, dict)
    key = CommandKey(execution_id=world.execution_id, command_id=str(hint["command_id"]))
    (outcome,) = await planner.claim(worker, [key])
    command = outcome.command
    assert command is not None
    assert command.step == "a"

    context = {"unselected": ["/rows"]}
    completion = await planner.complete(
        worker, key, {"status": "ok", "reference": None, "parent_ref": None, "context": context}, wants_next=True
    )

    assert completion.next is not None
    assert completion.next.step == "b"
    assert len(appends) == 4  # start; decide; claim; complete + decide + claim
    hinted = [decode(hint.body) for hint in world.log.hints[1:]]
    assert len(hinted) == 1, "only the other branch needs a wake-up"
    assert shard_of(world.execution_id, 64) == world.log.streams[world.execution_id].head.shard
    await planner.stop()
