"""Loops, driven purely: a playbook, the outcomes of its items in any order, and the facts that follow."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.canonical import encode
from noetl_core.catalog import to_draft
from noetl_core.causes import is_cause
from noetl_core.commands.events import CallDone, CallFailed, CommandAbandoned, CommandCompleted, CommandFailed
from noetl_core.commands.state import Command
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import DeadlineOf
from noetl_core.events import Event
from noetl_core.executions.decide import decide
from noetl_core.executions.events import CtxUpdated, PlaybookInitialized, StepExited
from noetl_core.executions.open_loops import MAX_BEGUN_AT_ONCE
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, empty, fold, prune
from noetl_core.loops.events import LoopDone, LoopItemStarted, LoopStarted
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.recorded import Recorded, as_if_recorded
from noetl_core.state_json import decode_state, encode_state
from noetl_core.steering.events import ExecutionPaused, ExecutionResumed
from noetl_testkit.histories import WORKLOAD

START = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTION = 7_000_000_000_000_000_001
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


@dataclass
class Run:
    """An execution whose items end when the test says so; nothing but fold and decide."""

    plan: Plan
    state: State = field(default_factory=lambda: empty(EXECUTION))
    events: list[Event] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)

    @classmethod
    def of(cls, workflow: str, **workload: Any) -> Run:
        playbook, _ = parse_playbook(f"{HEAD}workflow:\n{workflow}", supported=EVERYTHING)
        run = cls(plan=Plan(playbook=playbook, workload=workload))
        run.happens(PlaybookInitialized(path="p", version=1, catalog_id="1", payload_ref=None))
        return run

    def happens(self, content: Event) -> None:
        version = self.state.stream_version + 1
        draft = to_draft(content, idempotency_key=f"{version}")
        command = self.state.commands.get(draft.command_id)
        recorded = as_if_recorded(
            draft,
            tenant_id="t",
            organization_id="o",
            execution_id=EXECUTION,
            stream_version=version,
            aggregate_version=(command.aggregate_version if command else 0) + 1,
            time=START + timedelta(seconds=version),
        )
        self.events.append(content)
        self.recorded.append(recorded)
        self.state = prune(fold(self.state, recorded))
        if is_cause(recorded):
            for fact in decide(self.state, recorded, self.plan):
                self.happens(fact)

    def open(self, step: str = "l") -> list[Command]:
        return [command for command in self.state.commands.values() if command.step == step and command.is_open]

    def ends(self, command: Command, *, error: str = "", **context: Any) -> None:
        status = "error" if error else "ok"
        told = {**context, **({"error": {"code": error, "message": "no"}} if error else {})}
        result = {"status": status, "reference": None, "parent_ref": None, "context": told}
        about = {"command_id": command.command_id, "step": command.step, **command.of_item}
        self.happens((CallFailed if error else CallDone)(result=result, **about))
        self.happens((CommandFailed if error else CommandCompleted)(worker_id="w", **about))

    def loses_worker(self, command: Command) -> None:
        self.happens(
            CommandAbandoned(
                command_id=command.command_id,
                step=command.step,
                previous_owner="w",
                reclaimer="r",
                prior_lease_until="",
                previous_attempt=command.attempt,
                max_attempts=3,
                **command.of_item,
            )
        )

    def runs_out(self, step: str = "l", *, failing: tuple[int, ...] = ()) -> None:
        while commands := self.open(step):
            self.ends(commands[0], error="X" if commands[0].loop_index in failing else "")

    def of_type(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def done(self) -> LoopDone:
        (done,) = self.of_type(LoopDone)
        assert isinstance(done, LoopDone)
        return done

    @property
    def exited(self) -> StepExited:
        return next(event for event in self.events if isinstance(event, StepExited) and event.step == "l")


def loop(items: str = "[10, 20, 30]", spec: str = "", rest: str = "") -> str:
    return f"- {{step: l, loop: {{in: {items}, spec: {{{spec}}}}}, tool: {{kind: noop}}{rest}}}\n"


def test_items_of_a_sequential_loop_begin_one_after_the_other() -> None:
    run = Run.of(loop())
    order = []
    while commands := run.open():
        (command,) = commands
        order.append(command.loop_index)
        run.ends(command)
    assert order == [0, 1, 2]
    assert run.state.execution.status is ExecutionStatus.COMPLETED
    kinds = [type(event).__name__ for event in run.events]
    assert kinds.index("LoopStarted") == kinds.index("StepEntered") + 1
    assert kinds.index("LoopDone") + 1 == kinds.index("StepExited")


def test_a_parallel_loop_never_runs_more_items_at_once_than_it_may_and_begins_one_for_each_that_ends() -> None:
    run = Run.of(loop("'{{ range(20) }}'", "mode: parallel, max_in_flight: 3"))
    assert [command.loop_index for command in run.open()] == [0, 1, 2]
    run.ends(run.open()[1])
    assert [command.loop_index for command in run.open()] == [0, 2, 3]


@pytest.mark.parametrize("seed", range(25))
def test_every_index_runs_once_and_the_loop_is_done_once_whatever_the_order(seed: int) -> None:
    chance = random.Random(seed)
    total, width = chance.randrange(1, 60), chance.randrange(1, 12)
    run = Run.of(loop(f"'{{{{ range({total}) }}}}'", f"mode: parallel, max_in_flight: {width}"))
    while commands := run.open():
        assert len(commands) <= width
        if chance.random() < 0.2:
            run.loses_worker(chance.choice(commands))
        else:
            run.ends(chance.choice(commands))
    ended = Counter(event.loop_iteration_index for event in run.of_type(CallDone))
    lost = [event.loop_iteration_index for event in run.of_type(CallFailed)]
    assert ended == Counter(index for index in range(total) if index not in lost)
    assert (run.done.success, run.done.failed) == (total - len(lost), len(lost))
    assert run.state.execution.status is (ExecutionStatus.FAILED if lost else ExecutionStatus.COMPLETED)


def test_a_doubled_outcome_is_counted_once() -> None:
    run = Run.of(loop("[1, 2]", "mode: parallel"))
    first, second = run.open()
    run.ends(first)
    run.happens(next(event for event in run.events if isinstance(event, CallDone)))
    assert run.state.execution.loops["l"].ended == 1
    run.ends(second)
    assert run.done.success == 2


def test_an_empty_loop_is_done_at_once_and_its_arcs_fire() -> None:
    run = Run.of(
        loop("[]", rest=', next: {arcs: [{step: b, when: "{{ output.data.count == 0 and loop.done }}"}]}')
        + "- {step: b}\n"
    )
    assert (run.done.collection_size, run.done.status) == (0, "ok")
    assert [command.step for command in run.open("b")] == ["b"]


def test_chained_empty_loops_end_the_execution_in_one_decision() -> None:
    run = Run.of(loop("[]", rest=", next: {arcs: [{step: m}]}") + "- {step: m, loop: {in: []}}\n")
    assert run.state.execution.status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize(
    ("items", "size"),
    [
        ("null", 0),
        ("{a: 1, b: 2}", 1),
        ("text", 1),
        ("'[1, 2]'", 2),
        ("'{\"a\": 1}'", 1),
        ("'{{ nothing }}'", 0),
        ("'[1'", 1),
    ],
)
def test_what_in_may_be(items: str, size: int) -> None:
    run = Run.of(loop(items))
    (started,) = run.of_type(LoopStarted)
    assert started.collection_size == size


@pytest.mark.parametrize(
    ("workflow", "code"),
    [
        (loop("'{{ 7 }}'"), "loop.invalid_collection"),
        (loop("'{{ true }}'"), "loop.invalid_collection"),
        (loop("'{{ 1 / 0 }}'"), "template.error"),
        (loop("[1]", "mode: parallel, max_in_flight: '{{ 0 }}'"), "loop.invalid_max_in_flight"),
        (loop("[1]", "mode: parallel, max_in_flight: '{{ \"x\" }}'"), "loop.invalid_max_in_flight"),
    ],
)
def test_a_loop_that_cannot_open_is_done_and_fails_its_step(workflow: str, code: str) -> None:
    run = Run.of(workflow)
    assert run.done.status == "error"
    assert run.exited.error is not None
    assert run.exited.error["code"] == code
    assert run.state.execution.status is ExecutionStatus.FAILED


def test_max_in_flight_may_be_a_template() -> None:
    run = Run.of(loop("[1, 2, 3]", "mode: parallel, max_in_flight: '{{ width }}'"), width="2")
    assert len(run.open()) == 2


def test_one_failed_item_fails_the_loop_after_the_others_have_run() -> None:
    run = Run.of(loop(spec="mode: parallel"))
    run.runs_out(failing=(1,))
    assert (run.done.success, run.done.failed, run.done.status) == (2, 1, "partial")
    assert run.exited.error is not None
    assert run.exited.error["code"] == "loop.budget_exceeded"
    assert "item 1: no (X)" in run.exited.error["message"]


@pytest.mark.parametrize(
    ("budget", "fails"),
    [
        ("count: 1", True),
        ("count: 2", False),
        ("share: 0.5", False),
        ("share: 0.4", True),
        ("count: 2, share: 0.4", True),
    ],
)
def test_within_the_budget_the_step_succeeds(budget: str, fails: bool) -> None:
    run = Run.of(loop("[1, 2, 3, 4]", f"mode: parallel, failure_budget: {{{budget}}}"))
    run.runs_out(failing=(0, 3))
    assert run.exited.status == ("error" if fails else "ok")
    assert run.done.status == "partial"


def test_all_failed_within_the_budget_is_status_error_and_no_failure() -> None:
    run = Run.of(loop("[1]", "failure_budget: {count: 1}"))
    run.runs_out(failing=(0,))
    assert (run.done.status, run.exited.status) == ("error", "ok")


def test_with_fail_fast_no_further_item_starts_and_open_ones_drain() -> None:
    rest = ", spec: {policy: {failure: {mode: fail_fast}}}"
    run = Run.of(loop("'{{ range(9) }}'", "mode: parallel, max_in_flight: 2", rest))
    first, second = run.open()
    run.ends(first, error="X")
    assert run.open() == [second]
    assert not run.of_type(LoopDone)
    run.ends(second)
    assert (run.done.success, run.done.failed, run.done.status) == (1, 1, "partial")
    assert run.state.execution.status is ExecutionStatus.FAILED


@pytest.mark.parametrize(
    ("arcs", "entered", "status"),
    [
        ("[{step: b, when: \"{{ error.code == 'loop.budget_exceeded' }}\"}]", "b", ExecutionStatus.COMPLETED),
        ("[{step: b, when: \"{{ output.status == 'error' }}\"}]", "b", ExecutionStatus.COMPLETED),
        ("[{step: b}]", "b", ExecutionStatus.FAILED),
        ('[{step: b, when: "{{ output.data.stats.failed > 5 }}"}]', "", ExecutionStatus.FAILED),
        ("[{step: b, when: \"{{ event.name == 'loop.done' }}\"}]", "b", ExecutionStatus.FAILED),
    ],
)
def test_after_a_failed_loop_all_arcs_are_tried_and_only_an_error_arc_handles_it(
    arcs: str, entered: str, status: ExecutionStatus
) -> None:
    run = Run.of(loop("[1]", rest=f", next: {{arcs: {arcs}}}") + "- {step: b}\n")
    run.runs_out(failing=(0,))
    assert bool(run.open("b")) == bool(entered)
    run.runs_out("b")
    assert run.state.execution.status is status


def test_set_and_arcs_read_counts_of_the_loop() -> None:
    rest = ', set: {ctx.n: "{{ output.data.stats.success }}", ctx.s: "{{ output.data.status }}"}'
    run = Run.of(loop(rest=rest))
    run.runs_out()
    assert dict(run.state.execution.variables) == {"n": 3, "s": "ok"}


def test_a_silent_worker_costs_the_item_an_attempt_and_then_the_item_fails() -> None:
    run = Run.of(loop("[1, 2]", "mode: parallel"))
    keys = []
    while commands := [command for command in run.open() if command.loop_index == 0]:
        keys.append((commands[0].attempt, commands[0].loop_index))
        run.loses_worker(commands[0])
    assert keys == [(1, 0), (2, 0), (3, 0)]
    assert run.state.execution.loops["l"].failed == 1
    run.runs_out()
    assert (run.done.success, run.done.failed) == (1, 1)


def test_a_back_edge_opens_a_new_epoch_and_the_old_one_is_dropped() -> None:
    rest = ', next: {arcs: [{step: l, when: "{{ n < 3 }}", set: {ctx.n: "{{ n + 1 }}"}}]}'
    run = Run.of(loop("[1, 2]", rest=rest), n=1)
    run.runs_out()
    epochs = [event.loop_id for event in run.of_type(LoopDone)]
    assert epochs == [f"loop_{EXECUTION}_l_{visit}" for visit in (1, 2, 3)]
    assert set(run.state.execution.loops) == {"l"}
    assert len({event.command_id for event in run.of_type(CallDone)}) == 6


def test_the_end_of_the_execution_ends_open_loops_once() -> None:
    workflow = (
        "- {step: a, next: {spec: {mode: inclusive}, arcs: [{step: l}, {step: f}]}}\n"
        + loop(spec="mode: parallel")
        + "- {step: f, spec: {policy: {failure: {mode: fail_fast}}}}\n"
    )
    run = Run.of(workflow)
    run.runs_out("a")
    run.ends(run.open("f")[0], error="X")
    assert run.state.execution.status is ExecutionStatus.FAILED
    assert run.done.status == "error"
    before = len(run.events)
    run.ends(next(c for c in run.state.commands.values() if c.step == "l"))
    assert len(run.events) == before + 2, "late completions are ignored"


def test_two_wide_loops_of_one_decision_share_what_it_may_give_out_and_both_end() -> None:
    spec = "mode: parallel, max_in_flight: 10000"
    workflow = (
        "- {step: a, next: {spec: {mode: inclusive}, arcs: [{step: l}, {step: m}]}}\n"
        + loop("'{{ range(700) }}'", spec)
        + loop("'{{ range(700) }}'", spec).replace("step: l", "step: m")
    )
    run = Run.of(workflow)
    before = len(run.of_type(LoopItemStarted))
    run.runs_out("a")
    assert len(run.of_type(LoopItemStarted)) - before == MAX_BEGUN_AT_ONCE
    while commands := run.open("l") or run.open("m"):
        run.ends(commands[-1])
    assert Counter(done.success for done in run.of_type(LoopDone)) == {700: 2}
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_items_of_a_parallel_loop_remember_variables_as_they_were_for_the_others() -> None:
    run = Run.of(loop(spec="mode: parallel"))
    command = run.open()[0]
    run.happens(CtxUpdated(step="l", values={"x": 1}, loop_id=command.loop_id))
    run.happens(CtxUpdated(step="l", values={"x": 2}, loop_id=command.loop_id))
    assert run.state.execution.loops["l"].before == {"x": {}}
    assert run.state.execution.variables == {"x": 2}


def test_a_thousand_items_keep_the_state_and_the_work_per_item_bounded() -> None:
    chance = random.Random(7)
    run = Run.of(
        "- {step: a, next: {arcs: [{step: l}]}}\n" + loop("'{{ a.rows }}'", "mode: parallel, max_in_flight: 20")
    )
    run.ends(run.open("a")[0], unselected=["/rows"])
    answers = {
        "loop/in": {"ref": WORKLOAD.to_json(), "type": "list", "count": 1_000},
        "loop/max_in_flight": {"is": 20},
    }
    run.ends(run.open("l:evaluate_loop")[0], evaluation=answers)
    for ended in range(1, 981):
        before = len(run.events)
        run.ends(chance.choice(run.open()))
        assert len(run.events) - before == 4  # call.done, command.completed, loop.item, command.issued
        assert len(run.state.execution.loops["l"].finished) <= 21
        assert len(run.state.commands) <= 24
        if ended % 140 == 0:
            assert len(encode_state(run.state)) < 20_000
            assert decode_state(encode_state(run.state)) == run.state
    assert run.state.execution.loops["l"].ended == 980


def test_events_of_items_are_few_small_and_say_which_item_they_are_about() -> None:
    run = Run.of(loop("'{{ range(40) }}'", "mode: parallel"))
    run.runs_out()
    about = [one for one in run.recorded if "loop_iteration_index" in one.envelope.meta]
    per_item = Counter(one.envelope.meta["loop_iteration_index"] for one in about)
    assert set(per_item.values()) == {4}, "claimed and started are the planner's"
    assert all(one.envelope.meta["loop_id"] == f"loop_{EXECUTION}_l_1" for one in about)
    assert all(len(encode(one.envelope.meta)) < 500 for one in about)


def test_a_loop_over_the_results_of_the_one_before_asks_a_worker_for_them() -> None:
    run = Run.of(loop(rest=", next: {arcs: [{step: m}]}") + "- {step: m, loop: {in: '{{ l.results }}'}}\n")
    run.runs_out()
    (asked,) = run.open("m:evaluate_loop")
    assert not run.open("m")
    answers = {
        "loop/in": {"ref": WORKLOAD.to_json(), "type": "list", "count": 1_000},
        "loop/max_in_flight": {"is": 1},
    }
    run.ends(asked, evaluation=answers)
    assert run.state.execution.loops["m"].total == 1_000
    assert run.state.execution.loops["m"].collection == WORKLOAD
    assert [command.loop_index for command in run.open("m")] == [0]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"is": 7}, "loop.invalid_collection"),
        ({"failed": "no", "expression": "x"}, "template.error"),
    ],
)
def test_what_a_worker_answers_may_be_no_collection(answer: dict[str, Any], code: str) -> None:
    run = Run.of("- {step: a, next: {arcs: [{step: l}]}}\n" + loop("'{{ a.rows }}'"))
    run.ends(run.open("a")[0], unselected=["/rows"])
    run.ends(run.open("l:evaluate_loop")[0], evaluation={"loop/in": answer, "loop/max_in_flight": {"is": 1}})
    assert run.exited.error is not None
    assert run.exited.error["code"] == code
    assert run.done.status == "error"


def test_nobody_can_evaluate_the_collection() -> None:
    run = Run.of("- {step: a, next: {arcs: [{step: l}]}}\n" + loop("'{{ a.rows }}'"))
    run.ends(run.open("a")[0], unselected=["/rows"])
    while commands := run.open("l:evaluate_loop"):
        run.loses_worker(commands[0])
    assert run.exited.error is not None
    assert run.exited.error["code"] == "command.attempts_exhausted"
    assert run.done.status == "error"


def test_a_step_whose_time_is_over_ends_its_loop_with_it_and_begins_no_more_items() -> None:
    rest = ", next: {arcs: [{step: b, when: \"{{ error.code == 'step.timeout' and loop.length == 9 }}\"}]}"
    run = Run.of(loop("'{{ range(9) }}'", "mode: parallel, max_in_flight: 2", rest) + "- {step: b}\n")
    first, second = run.open()
    run.ends(first)
    passed = DeadlinePassed(what=DeadlineOf.STEP, step="l", activation=1, deadline="2026-01-01T00:00:00Z")
    run.happens(passed)
    assert (run.done.success, run.done.status) == (1, "partial")
    assert run.exited.handled
    assert not run.open()
    before = len(run.events)
    run.ends(second)
    assert len(run.events) == before + 2, "what comes late changes nothing"
    run.runs_out("b")
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_a_loop_that_was_never_opened_is_done_when_its_step_is_left() -> None:
    run = Run.of("- {step: a, next: {arcs: [{step: l}]}}\n" + loop("'{{ a.rows }}'"))
    run.ends(run.open("a")[0], unselected=["/rows"])
    run.happens(DeadlinePassed(what=DeadlineOf.STEP, step="l", activation=1, deadline="2026-01-01T00:00:00Z"))
    assert (run.done.status, run.done.collection_size) == ("error", 0)
    assert run.state.execution.status is ExecutionStatus.FAILED


def test_a_paused_loop_goes_on_where_it_was_and_ends_once() -> None:
    run = Run.of(loop("[1, 2, 3]", "mode: parallel, max_in_flight: 2"))
    run.happens(ExecutionPaused(reason="lunch", paused_by="ada"))
    for command in run.open():
        run.ends(command)
    assert not run.open()
    assert not run.of_type(LoopDone)
    run.happens(ExecutionResumed(reason="", resumed_by="ada"))
    assert [command.loop_index for command in run.open()] == [2]
    run.runs_out()
    assert run.done.success == 3


def test_a_loop_whose_admission_fails_is_done_too() -> None:
    rest = ", spec: {policy: {admit: {rules: [{when: '{{ 1 / 0 }}', then: {allow: true}}]}}}"
    run = Run.of(loop(rest=rest))
    assert run.done.status == "error"
    assert not run.of_type(LoopStarted)
