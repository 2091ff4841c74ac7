"""Two planners at once, deliveries lost, doubled and late, answers lost, planners and workers killed: one history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from noetl_core.append import END_KEY, AppendRequest, StreamAppend
from noetl_core.canonical import decode
from noetl_core.catalog import to_draft
from noetl_core.envelope import verify_link
from noetl_core.errors import NoetlError
from noetl_core.events import is_terminal
from noetl_core.execution_view import late_after
from noetl_core.executions.evaluate import evaluate
from noetl_core.executions.evaluation import Evaluation
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.executions.left_open import unfinished_loops
from noetl_core.executions.names import LOADED
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.steering import SteerAction
from noetl_core.sharding import shard_of
from noetl_testkit.chaos import ChaosWorld
from noetl_testkit.until import until

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


class World(ChaosWorld):
    """Workers that run what they are given, evaluate what they are asked, and die now and then."""

    def __init__(self, seed: int, *, trouble: float = 0.15) -> None:
        super().__init__(seed, trouble=trouble)
        self.ran: Counter[tuple[str, int, int]] = Counter()

    async def begin(self) -> None:
        await self.begin_with(PLAYBOOK)

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
            outcomes = await self.any_planner().claim(worker, list(dict.fromkeys([*late, *fresh])))
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
                completion = await self.any_planner().complete(
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

    async def cancel(self) -> None:
        """What api appends when somebody ends the execution, whoever is in the middle of what."""
        ended = ExecutionCancelled(reason="enough", cancelled_by="test")
        stream = StreamAppend(execution_id=self.execution_id, drafts=(to_draft(ended, idempotency_key=END_KEY),))
        with suppress(NoetlError):
            await self.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))

    async def maybe_steer(self) -> None:
        """Somebody pauses or resumes, at any of the planners."""
        if self.chance.random() >= 0.4:
            return
        action = self.chance.choice((SteerAction.PAUSE, SteerAction.RESUME, SteerAction.RESUME))
        with suppress(NoetlError):
            await self.any_planner().steer(self.execution_id, action, by="test", reason="")


@pytest.mark.parametrize("seed", range(30))
async def test_the_history_is_whole_and_every_activation_happens_once_whatever_goes_wrong(seed: int) -> None:
    world = World(seed)
    await world.begin()
    await world.live()

    assert_whole(world)


@pytest.mark.parametrize("seed", range(12))
async def test_pauses_in_the_middle_of_it_hold_back_everything_and_lose_nothing(seed: int) -> None:
    world = World(seed)
    await world.begin()
    await world.live(meanwhile=world.maybe_steer)

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
    for _ in range(seed * 3):
        world.deliver_some()
        world.sweep()
        await asyncio.gather(*(world.work_once(worker) for worker in workers))
    await world.cancel()
    world.flaky.trouble = 0.0
    calls: list[object] = []
    world.sweep()
    for index, execution_id, event in [*world.late]:
        world.planners[index].take(execution_id, event)
    await until(lambda: not any(task.get_name().startswith("execution-") for task in asyncio.all_tasks()))
    world.log.on_commit.append(calls.append)

    for planner in world.planners:
        planner.let_go_of_ended()
        outcomes = await planner.claim(workers[0], [CommandKey(execution_id=world.execution_id, command_id="x")])
        assert outcomes[0].refusal == "execution.already_terminal"
        await planner.stop()

    kinds = Counter(event.envelope().event_type for event in world.events())
    assert kinds["execution.cancelled"] + kinds["playbook.completed"] == 1
    assert_loops_are_closed(world)
    assert calls == []


@pytest.mark.parametrize("seed", range(6))
async def test_loops_of_a_cancelled_execution_end_even_if_no_planner_heard_of_it(seed: int) -> None:
    world = World(seed, trouble=0.0)
    await world.begin()
    worker = Worker(worker_id="w")
    while not world.state().execution.loops:
        world.deliver_some()
        world.sweep()
        await world.work_once(worker)
        await world.reap()
        await asyncio.sleep(0)
    await world.cancel()
    for planner in world.planners:  # all of them are killed before they hear of it
        await planner.stop()
    world.planners = [world.planner(), world.planner()]
    world.sweep()
    late = late_after(world.state())
    assert late is not None, "the projection lists it, so a reaper asks for it"

    for planner in world.planners:
        told = await planner.pass_deadlines(world.execution_id, through=late)
        assert (told.passed, told.cascades) == (0, False)
        await planner.stop()

    assert_loops_are_closed(world)
    assert late_after(world.state()) is None


def assert_loops_are_closed(world: World) -> None:
    """Each loop has one end; nothing else follows the end of the execution."""
    envelopes = [event.envelope() for event in world.events()]
    started = Counter(one.meta["loop_id"] for one in envelopes if one.event_type == "loop.started")
    done = Counter(one.meta["loop_id"] for one in envelopes if one.event_type == "loop.done")
    assert done - started == Counter(loop_id for loop_id in done if loop_id not in started)
    assert set(started) <= set(done)
    assert set(done.values()) <= {1}
    assert unfinished_loops(world.state()) == {}
    (end,) = [place for place, one in enumerate(envelopes) if is_terminal(one.event_type)]
    assert {one.event_type for one in envelopes[end + 1 :]} <= {"loop.done"}


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
