"""Random playbooks that combine everything, run in random order: each ends exactly once, and nothing is done twice.

Calls end, fail, fall silent, are parked and answered, tell chunks; deadlines pass; somebody pauses and resumes. The
state is pruned and read back from its stored form all the while, as a planner that is replaced would do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import pytest
from noetl_core.children.events import CommandParked, CommandResumed
from noetl_core.commands.events import CommandIssued
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import open_deadlines
from noetl_core.errors import PlaybookInvalid
from noetl_core.events import Event
from noetl_core.executions.events import (
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
    StepEntered,
    StepExited,
)
from noetl_core.executions.left_open import EndOfExecution, unfinished_loops
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution, ExecutionStatus
from noetl_core.fold import prune
from noetl_core.loops.events import LoopDone, LoopItemStarted, LoopStarted
from noetl_core.payloads import refer_to
from noetl_core.state_json import decode_state, encode_state
from noetl_core.steering.events import ExecutionPaused, ExecutionResumed
from noetl_core.streams.events import CallPartial, ChunkRouted
from noetl_core.streams.routing import takes_chunks
from noetl_core.streams.state import Chunk
from noetl_core.timestamps import format_time
from noetl_testkit.pure_run import PureRun

RUNS = 150
ROWS = [{"n": 1}, {"n": 2}, {"n": 3}]
PIPELINE = refer_to(b"{}", tenant_id="t", organization_id="o", media_type="application/json")
FORWARD = (
    *(None,) * 8,
    "{{ result.n > 0 }}",
    "{{ result.rows | length > 2 }}",
    "{{ output.status == 'error' }}",
    "{{ error.code == 'E' and result.rows is defined }}",
    "{{ nothing.there.is }}",
)
BACK = ("{{ result.n < 3 }}", "{{ result.n < 3 and result.rows | length > 1 }}")
CHUNKS = (None, None, "{{ result.rows | length > 2 }}", "{{ output.data.rows[0].n > 5 }}", "{{ nothing.there.is + 1 }}")
LISTS = ("{{ items }}", "{{ result.rows | default(items) }}", "{{ [] }}", "{{ 5 }}", "{{ nothing.there.is }}")
ADMISSIONS = ("{{ true }}", "{{ false }}", *("{{ result.rows | length > 1 }}",) * 5, "{{ nothing.there.is }}")


def random_playbook(random: Random) -> str:
    """A playbook as JSON, which is YAML."""
    names = [f"s{number}" for number in range(random.randint(3, 6))]
    steps = [_step(random, names, place) for place in range(len(names))]
    executor: dict[str, Any] = {}
    if random.random() < 0.3:
        executor["final_step"] = random.choice(names[1:])
    if random.random() < 0.2:
        executor["timeout"] = 60
    if random.random() < 0.2:
        executor["no_next_is_error"] = True
    playbook = {"executor": {"spec": executor}, "workload": {"items": [1, 2, 3, 4]}, "workflow": steps}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in playbook.items())


def _step(random: Random, names: list[str], place: int) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    spec: dict[str, Any] = {"policy": policy}
    step: dict[str, Any] = {"step": names[place], "tool": {"kind": "noop"}, "spec": spec}
    is_loop = random.random() < 0.3
    streams = not is_loop and random.random() < 0.3
    if streams:
        step["tool"] = {"kind": "postgres", "command": "select 1", "spec": {"stream": {"chunk_rows": 1}}}
    if is_loop:
        how = {"mode": random.choice(["sequential", "parallel"]), "max_in_flight": random.randint(1, 3)}
        how["failure_budget"] = {"count": random.randint(0, 2)}
        step["loop"] = {"in": random.choice(LISTS[:2] * 4 + LISTS), "iterator": "it", "spec": how}
    if random.random() < 0.25:
        rule = {"when": random.choice(ADMISSIONS), "then": {"allow": True}}
        policy["admit"] = {"rules": [rule, {"else": {"then": {"allow": False}}}]}
    if random.random() < 0.3:
        spec["timeout"] = 30
    if random.random() < 0.1:
        policy["failure"] = {"mode": "fail_fast"}
    if random.random() < 0.2:
        step["set"] = {"ctx.seen": random.choice(["{{ result.n }}", "{{ result.rows | length }}"])}
    arcs = [_arc(random, names, place, streams) for _ in range(random.randint(1, 4))]
    step["next"] = {"spec": {"mode": random.choice(["exclusive", "inclusive", "inclusive"])}, "arcs": arcs}
    return step


def _arc(random: Random, names: list[str], place: int, streams: bool) -> dict[str, Any]:
    goes_on = place + 1 < len(names) and random.random() < 0.8
    target = random.randrange(place + 1, len(names)) if goes_on else random.randrange(place + 1)
    arc: dict[str, Any] = {"step": names[target]}
    if streams and target != place and random.random() < 0.6:
        when = random.choice(CHUNKS) if goes_on else "{{ result.chunk_index < 1 }}"
        return {**arc, "on": "call.partial", **({"when": when} if when else {})}
    when = random.choice(FORWARD) if goes_on else random.choice(BACK)
    return arc if when is None else {**arc, "when": when}


@dataclass
class RandomRun(PureRun):
    """A run in which everything happens that may happen to an execution."""

    random: Random = field(default_factory=Random)
    waits: int = 0
    enders: int = 0
    """How likely it is that somebody ends the execution from outside."""

    def happens(self, content: Event) -> None:
        super().happens(content)
        if isinstance(content, LoopDone):
            context = (content.result or {}).get("context") or {}
            self.results[content.step] = {"results": [], "rows": ROWS, "n": 2, "status": context.get("status")}

    def with_data(self, execution: Execution) -> Execution:
        execution = super().with_data(execution)
        steps = {name: replace(step, chunk=self.with_rows(step.chunk)) for name, step in execution.steps.items()}
        return replace(execution, steps=steps)

    def rows_of(self, chunk: Chunk) -> Any:
        return ROWS

    def run(self) -> RandomRun:
        self.start()
        for turn in range(2_000):
            self.state = prune(self.state)
            assert decode_state(encode_state(self.state)) == self.state
            execution = self.state.execution
            if execution.status.is_final:
                return self
            paused = execution.status is ExecutionStatus.PAUSED
            assert paused or self.open(), "nothing is open, and it has not ended"
            self._something(calm=turn > 300)
        raise AssertionError("it does not end")

    def _something(self, *, calm: bool) -> None:
        chances: list[tuple[int, Callable[[], None] | None]] = [
            (40, self._end_one()),
            (25, self._tell()),
            (10, self._resume_parked()),
            (0 if calm else 8, self._park()),
            (0 if calm else 5, self._lose()),
            (0 if calm else 4, self._pass_deadline()),
            (0 if calm else 8, self._pause()),
            (8, self._go_on_again()),
            (0 if calm else self.enders, self._end_from_outside()),
        ]
        possible = [(weight, act) for weight, act in chances if act is not None and weight]
        act = self.random.choices([act for _, act in possible], [weight for weight, _ in possible])[0]
        act()

    def _running(self) -> list[Command]:
        return [command for command in self.open() if command.status is not CommandStatus.PARKED]

    def _any(self, commands: list[Command]) -> Command | None:
        return self.random.choice(commands) if commands else None

    def _end_one(self) -> Callable[[], None] | None:
        command = self._any(self._running())
        if command is None:
            return None
        result = self.answer if command.evaluation is not None else self._result
        return lambda: self._close(command, result(command))

    def _lose(self) -> Callable[[], None] | None:
        command = self._any(self._running())
        return (lambda: self.lost(command)) if command else None

    def _park(self) -> Callable[[], None] | None:
        command = self._any([one for one in self._running() if one.evaluation is None])
        if command is None:
            return None
        self.waits += 1
        parked = CommandParked(
            command_id=command.command_id,
            step=command.step,
            worker_id="w",
            call_id=f"{command.stream_key}/{self.waits}",
            child_execution_id="9",
            payload_ref=PIPELINE,
            timeout_seconds=20.0,
        )
        return lambda: self.happens(parked)

    def _resume_parked(self) -> Callable[[], None] | None:
        command = self._any([one for one in self.open() if one.status is CommandStatus.PARKED])
        if command is None or command.parked is None:
            return None
        resumed = CommandResumed(
            step=command.step,
            command_id=command.command_id,
            call_id=command.parked.call_id,
            child_execution_id="9",
            status="COMPLETED",
        )
        return lambda: self.happens(resumed)

    def _tell(self) -> Callable[[], None] | None:
        streams = self.state.execution.streams
        command = self._any(
            [
                one
                for one in self._running()
                if one.evaluation is None
                and takes_chunks(self.plan, one.step)
                and not (one.step in streams and streams[one.step].is_full)
                and one.streamed.chunk < 4
            ]
        )
        if command is None:
            return None
        told = CallPartial(
            command_id=command.command_id,
            step=command.step,
            task="t",
            call=command.streamed.call,
            chunk_index=command.streamed.chunk,
            row_count=1,
            has_more=True,
            payload_ref=PIPELINE,
            activation=command.activation,
            queued=True,
        )
        return lambda: self.happens(told)

    def _pass_deadline(self) -> Callable[[], None] | None:
        deadlines = sorted(open_deadlines(self.state.execution, self.state.commands))
        if not deadlines:
            return None
        due = deadlines[0]
        passed = DeadlinePassed(
            what=due.what.value,
            deadline=format_time(due.at),
            step=due.step,
            activation=due.activation,
            command_id=due.command_id,
        )
        return lambda: self.happens(passed)

    def _pause(self) -> Callable[[], None] | None:
        if self.state.execution.status is not ExecutionStatus.RUNNING:
            return None
        return lambda: self.happens(ExecutionPaused(reason="", paused_by="x"))

    def _end_from_outside(self) -> Callable[[], None]:
        error = {"code": "execution.finalized", "message": "enough"}
        ends = (
            ExecutionCancelled(reason="enough", cancelled_by="x"),
            PlaybookCompleted(finalized_by="x"),
            PlaybookFailed(error=error, finalized_by="x"),
        )
        return partial(self.happens, self.random.choice(ends))

    def _go_on_again(self) -> Callable[[], None] | None:
        if self.state.execution.status is not ExecutionStatus.PAUSED:
            return None
        return lambda: self.happens(ExecutionResumed(reason="", resumed_by="x"))


def check(run: RandomRun) -> None:
    """What must be true of every log."""
    (end,) = [place for place, event in enumerate(run.events) if isinstance(event, EndOfExecution)]  # ended once
    after = run.events[end + 1 :]
    assert all(isinstance(event, LoopDone) for event in after), "nothing else follows the end"
    assert not after or run.enders, "loops end before the execution does, unless somebody ends it from outside"
    assert unfinished_loops(run.state) == {}, "every loop that was opened is over"
    active: dict[str, int] = {}
    entered: Counter[str] = Counter()
    seen: Counter[Any] = Counter()
    for event in run.events:
        match event:
            case StepEntered():
                assert event.step not in active, f"{event.step} is entered while it is active"
                entered[event.step] += 1
                assert event.activation == entered[event.step]
                active[event.step] = event.activation
            case StepExited():
                assert active.pop(event.step, None) == event.activation, f"{event.step} is left and was not in"
                if event.status == "ok" and takes_chunks(run.plan, event.step):
                    assert _places(seen, "told", event) == _places(seen, "routed", event), "chunks are lost"
                if run.plan.playbook.steps[event.step].loop is not None:
                    assert seen["loop.done", event.step, event.activation] == 1
            case LoopStarted() | LoopDone():
                name = "loop.started" if isinstance(event, LoopStarted) else "loop.done"
                seen[name, event.step, event.activation] += 1
            case LoopItemStarted():
                seen["item", event.loop_id, event.iter_index] += 1
            case CommandIssued():
                seen["command", event.command_id] += 1
            case CallPartial() if event.queued:
                seen["told", event.step, event.activation, event.call, event.chunk_index] += 1
            case ChunkRouted():
                seen["routed", event.step, event.activation, event.call, event.chunk_index] += 1
    assert {what: times for what, times in seen.items() if times > 1} == {}
    loops = {name for name, step in run.plan.playbook.steps.items() if step.loop is not None}
    epochs = {(name, visit) for name in loops for visit in range(1, entered[name] + 1)}
    assert {what[1:] for what in seen if what[0] == "loop.done"} == epochs, "one loop.done for each activation"
    if isinstance(run.events[end], PlaybookCompleted) and not run.enders:
        assert not active, "it completed, and steps are still active"


def _places(seen: Counter[Any], what: str, of: StepExited) -> set[tuple[int, int]]:
    return {place[3:] for place in seen if place[:3] == (what, of.step, of.activation)}


@pytest.mark.parametrize("part", range(3))
def test_every_run_ends_once_whatever_happens_to_it(part: int) -> None:
    run_seeds(range(part * RUNS // 3, (part + 1) * RUNS // 3), enders=0)


def test_whoever_ends_a_run_from_outside_leaves_no_loop_without_an_end() -> None:
    run_seeds(range(RUNS), enders=4)


def run_seeds(seeds: range, *, enders: int) -> None:
    for seed in seeds:
        random = Random(seed)
        playbook = random_playbook(random)
        plan = _plan(playbook)
        if plan is None:  # chunks that lead back to their own step are refused
            continue
        run = RandomRun(plan=plan, outcome=partial(_outcome, random), random=random, enders=enders)
        try:
            run.run()
            check(run)
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {exc}\n{playbook}") from exc


def _plan(playbook: str) -> Plan | None:
    try:
        return PureRun.of(playbook).plan
    except PlaybookInvalid:
        return None


def _outcome(random: Random, step: str, visit: int) -> dict[str, Any]:
    if random.random() < 0.08:
        return {"code": "E", "message": "no"}
    return {"n": visit, "rows": ROWS[: random.randint(1, 3)]}
