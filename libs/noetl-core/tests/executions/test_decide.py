"""Routing, driven purely: a playbook, the outcomes of its steps, and the facts that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.append import END_KEY
from noetl_core.catalog import to_draft
from noetl_core.causes import is_cause
from noetl_core.commands.events import CallDone, CallFailed, CommandAbandoned, CommandCompleted, CommandFailed
from noetl_core.events import Event
from noetl_core.executions.decide import decide
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, empty, fold
from noetl_core.playbook.selection import control_paths, select_scalars
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.recorded import as_if_recorded

START = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTION = 7_000_000_000_000_000_001


@dataclass
class Run:
    """An execution whose steps end as the test says; nothing but fold and decide."""

    plan: Plan
    outcome: Callable[[str, int], Any]
    state: State = field(default_factory=lambda: empty(EXECUTION))
    events: list[Event] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, yaml: str, outcome: Callable[[str, int], Any] = lambda step, visit: {}, **workload: Any) -> Run:
        head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
        playbook, _ = parse_playbook(head + yaml, supported=EVERYTHING)
        plan = Plan(playbook=playbook, workload={**playbook.workload, **workload})
        return cls(plan=plan, outcome=outcome)

    def start(self) -> Run:
        self.happens(PlaybookInitialized(path="p", version=1, catalog_id="1", payload_ref=None))
        return self

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
        self.state = fold(self.state, recorded)
        if is_cause(recorded):
            for fact in decide(self.state, recorded, self.plan):
                self.happens(fact)

    def finish(self, step: str) -> None:
        command = next(c for c in self.state.commands.values() if c.step == step and c.is_open)
        value = self.outcome(step, command.activation)
        error = value if isinstance(value, dict) and "code" in value else None
        selected, unselected = select_scalars(value, control_paths(self.plan.playbook, step))
        context: dict[str, Any] = {"select": selected, "unselected": list(unselected)}
        result: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": context}
        if error:
            context["error"] = error
            result["status"] = "error"
        name = command.command_id
        self.happens((CallFailed if error else CallDone)(command_id=name, step=step, result=result))
        self.happens((CommandFailed if error else CommandCompleted)(command_id=name, step=step, worker_id="w"))

    def running(self) -> list[str]:
        return [command.step for command in self.state.commands.values() if command.is_open]

    def to_the_end(self, pick: Callable[[list[str]], str] = lambda running: running[0]) -> Run:
        self.start()
        for _ in range(1000):
            if self.state.execution.status.is_final:
                return self
            self.finish(pick(self.running()))
        raise AssertionError("the execution does not end")

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def entered(self) -> list[str]:
        return [event.step for event in self.events if type(event).__name__ == "StepEntered"]  # type: ignore[union-attr]

    def skipped(self) -> list[str]:
        return [event.step for event in self.events if type(event).__name__ == "StepSkipped"]  # type: ignore[union-attr]


LINE = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
"""


def test_two_steps_run_in_order_and_end_once() -> None:
    run = Run.of(LINE).to_the_end()

    assert run.entered() == ["a", "b"]
    assert run.names()[-2:] == ["WorkflowCompleted", "PlaybookCompleted"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_identities_are_derived_so_two_planners_agree() -> None:
    first, second = Run.of(LINE).to_the_end(), Run.of(LINE).to_the_end()

    assert first.events == second.events


CONDITIONAL = """
workload: {limit: 1}
workflow:
- step: score
  tool: {kind: noop}
  next: {arcs: [{step: review, when: "{{ output.data.risk > limit }}"}, {step: done}]}
- {step: review, tool: {kind: noop}, next: {arcs: [{step: done}]}}
- {step: done, tool: {kind: noop}}
"""


def test_the_first_arc_that_holds_is_taken_and_the_rest_is_skipped() -> None:
    risky = Run.of(CONDITIONAL, lambda step, visit: {"risk": 2}).to_the_end()
    safe = Run.of(CONDITIONAL, lambda step, visit: {"risk": 1}).to_the_end()

    assert risky.entered() == ["score", "review", "done"]
    assert safe.entered() == ["score", "done"]
    assert safe.skipped() == ["review"]


def test_variables_given_at_the_start_decide_arcs() -> None:
    run = Run.of(CONDITIONAL, lambda step, visit: {"risk": 2}, limit=5).to_the_end()

    assert run.entered() == ["score", "done"]


DIAMOND = """
workflow:
- {step: a, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}]}}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: d}]}}
- {step: c, tool: {kind: noop}, next: {arcs: [{step: e}]}}
- {step: e, tool: {kind: noop}, next: {arcs: [{step: d}]}}
- {step: d, tool: {kind: noop}}
"""


def test_a_join_waits_for_every_branch_that_can_still_reach_it_and_runs_once() -> None:
    run = Run.of(DIAMOND).start()
    run.finish("a")
    run.finish("b")
    assert run.running() == ["c"]

    run.finish("c")
    assert run.running() == ["e"]
    run.finish("e")

    assert run.running() == ["d"]
    run.finish("d")
    assert run.entered().count("d") == 1
    assert run.state.execution.status is ExecutionStatus.COMPLETED


LOOPING = """
workflow:
- step: count
  tool: {kind: noop}
  next: {arcs: [{step: count, when: "{{ output.data.n < 3 }}"}, {step: done}]}
- {step: done, tool: {kind: noop}}
"""


def test_a_back_edge_makes_a_new_activation_each_time() -> None:
    run = Run.of(LOOPING, lambda step, visit: {"n": visit}).to_the_end()

    assert run.entered() == ["count", "count", "count", "done"]
    issued = [event for event in run.events if type(event).__name__ == "CommandIssued"]
    assert len({event.command_id for event in issued}) == 4  # type: ignore[union-attr]


FAILING = """
workflow:
- step: a
  tool: {kind: noop}
  next: {arcs: [{step: b}, {step: rescue, when: "{{ output.status == 'error' }}"}]}
- {step: b, tool: {kind: noop}}
- {step: rescue, tool: {kind: noop}}
"""


def boom(step: str, visit: int) -> dict[str, Any]:
    return {"code": "PY_ValueError", "kind": "unknown", "message": "no", "retryable": False} if step == "a" else {}


def test_an_error_arc_handles_a_failure() -> None:
    run = Run.of(FAILING, boom).to_the_end()

    assert run.entered() == ["a", "rescue"]
    assert run.state.execution.status is ExecutionStatus.COMPLETED


def test_an_unhandled_failure_ends_the_execution_with_step_and_code() -> None:
    run = Run.of(LINE, boom).to_the_end()

    assert run.entered() == ["a"]
    assert run.state.execution.status is ExecutionStatus.FAILED
    error = run.state.execution.error
    assert error is not None
    assert (error["step"], error["code"]) == ("a", "PY_ValueError")


def test_other_branches_drain_after_a_failure_unless_the_step_fails_fast() -> None:
    branches = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: c}]}}
- {step: a, tool: {kind: noop}, spec: {policy: {failure: {mode: MODE}}}}
- {step: c, tool: {kind: noop}, next: {arcs: [{step: d}]}}
- {step: d, tool: {kind: noop}}
"""
    drained = Run.of(branches.replace("MODE", "best_effort"), boom).to_the_end()
    assert drained.entered() == ["s", "a", "c", "d"]
    assert drained.state.execution.status is ExecutionStatus.FAILED

    fast = Run.of(branches.replace("MODE", "fail_fast"), boom).to_the_end()
    assert fast.entered() == ["s", "a", "c"]
    assert fast.state.execution.status is ExecutionStatus.FAILED


def test_a_condition_that_cannot_be_evaluated_fails_its_step_and_is_never_false() -> None:
    run = Run.of(
        """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ output.data.x + 1 > 2 }}"}, {step: c}]}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
""",
        lambda step, visit: {"x": None},
    ).to_the_end()

    assert run.state.execution.status is ExecutionStatus.FAILED
    assert run.state.execution.error is not None
    assert run.state.execution.error["code"] == "template.error"


def test_now_in_a_condition_is_the_time_of_the_event_and_error_is_undefined_on_success() -> None:
    run = Run.of(
        """
workflow:
- step: a
  tool: {kind: noop}
  next: {arcs: [{step: b, when: "{{ now() < '2026-01-01T00:01' and error is not defined }}"}]}
- {step: b, tool: {kind: noop}}
"""
    ).to_the_end()

    assert run.entered() == ["a", "b"]


def test_no_match_fails_only_where_the_playbook_says_so() -> None:
    quiet = """
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ false }}"}]}}
- {step: b, tool: {kind: noop}}
"""
    strict = "executor: {spec: {no_next_is_error: true}}" + quiet

    assert Run.of(quiet).to_the_end().state.execution.status is ExecutionStatus.COMPLETED
    failed = Run.of(strict).to_the_end().state.execution
    assert failed.error is not None
    assert failed.error["code"] == "next.no_match"


def test_the_final_step_runs_once_at_the_end_also_after_a_failure() -> None:
    playbook = """
executor: {spec: {final_step: cleanup}}
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
- {step: cleanup, tool: {kind: noop}}
"""
    well = Run.of(playbook).to_the_end()
    badly = Run.of(playbook, boom).to_the_end()

    assert well.entered() == ["a", "b", "cleanup"]
    assert badly.entered() == ["a", "cleanup"]
    assert badly.state.execution.status is ExecutionStatus.FAILED


SETTING = """
workload: {limit: 10, seen: {old: 1}}
workflow:
- step: a
  tool: {kind: noop}
  set: {ctx.risk: "{{ output.data.n * 2 }}", ctx.seen.risk: "{{ risk }}", step.mine: "{{ risk + 1 }}"}
  next:
    arcs:
    - {step: b, when: "{{ mine > limit and seen.risk == risk }}", set: {ctx.from: "high"}}
    - {step: c, set: {ctx.from: "low"}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""


def test_set_of_a_step_precedes_its_arcs_and_that_of_the_fired_arc_follows() -> None:
    high = Run.of(SETTING, lambda step, visit: {"n": 7}).to_the_end()
    low = Run.of(SETTING, lambda step, visit: {"n": 1}).to_the_end()

    assert high.entered() == ["a", "b"]
    assert high.state.execution.variables == {"risk": 14, "seen": {"old": 1, "risk": 14}, "from": "high"}
    assert low.entered() == ["a", "c"]
    assert low.state.execution.variables["from"] == "low"


def test_set_that_cannot_be_rendered_fails_its_step_and_sets_nothing() -> None:
    run = Run.of(SETTING, lambda step, visit: {"n": None}).to_the_end()

    assert run.state.execution.variables == {}
    assert run.state.execution.error is not None
    assert run.state.execution.error["code"] == "template.error"


ADMITTING = """
workload: {open: false}
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- step: b
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ open }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
  next: {arcs: [{step: c}]}
- {step: c, tool: {kind: noop}}
"""


def test_a_step_that_is_not_admitted_is_skipped_with_what_only_it_led_to() -> None:
    denied = Run.of(ADMITTING).to_the_end()
    admitted = Run.of(ADMITTING, open=True).to_the_end()

    assert (denied.entered(), denied.skipped()) == (["a"], ["b", "c"])
    assert denied.state.execution.status is ExecutionStatus.COMPLETED
    assert admitted.entered() == ["a", "b", "c"]


def test_an_admission_rule_that_cannot_be_evaluated_fails_the_step() -> None:
    run = Run.of(ADMITTING.replace("{{ open }}", "{{ open + none }}")).to_the_end()

    assert run.entered() == ["a", "b"]
    assert run.state.execution.error is not None
    assert (run.state.execution.error["step"], run.state.execution.error["code"]) == ("b", "template.error")


def silence(run: Run, step: str) -> None:
    command = next(c for c in run.state.commands.values() if c.step == step and c.is_open)
    run.happens(
        CommandAbandoned(
            command_id=command.command_id,
            step=step,
            previous_owner="w",
            reclaimer="r",
            prior_lease_until="2026-01-01T00:00:00.000000Z",
            previous_attempt=command.attempt,
            max_attempts=3,
        )
    )


def test_a_silent_attempt_is_issued_again_until_attempts_are_used_up() -> None:
    run = Run.of(LINE).start()
    attempts = []
    for _ in range(3):
        attempts.append(next(c for c in run.state.commands.values() if c.is_open).attempt)
        silence(run, "a")

    assert attempts == [1, 2, 3]
    assert run.state.execution.status is ExecutionStatus.FAILED
    assert run.state.execution.error is not None
    assert run.state.execution.error["code"] == "command.attempts_exhausted"


@st.composite
def workflows(draw: st.DrawFn) -> tuple[str, dict[tuple[str, int], bool]]:
    size = draw(st.integers(1, 7))
    names = [f"s{number}" for number in range(size)]
    lines = ["workflow:"]
    for name in names:
        targets = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
        mode = draw(st.sampled_from(["exclusive", "inclusive"]))
        # `n` counts visits, so every way back closes after a while.
        arcs = ", ".join(
            f'{{step: {target}, when: "{{{{ output.data.n < {draw(st.integers(1, 4))} }}}}"}}' for target in targets
        )
        lines.append(f"- {{step: {name}, tool: {{kind: noop}}, next: {{spec: {{mode: {mode}}}, arcs: [{arcs}]}}}}")
    failures = draw(st.dictionaries(st.tuples(st.sampled_from(names), st.integers(1, 3)), st.just(True), max_size=3))
    return "\n".join(lines), failures


@settings(max_examples=300, deadline=None)
@given(workflow=workflows(), order=st.randoms(use_true_random=False))
def test_any_graph_with_any_outcomes_in_any_order_ends_exactly_once(
    workflow: tuple[str, dict[tuple[str, int], bool]], order: Any
) -> None:
    yaml, failures = workflow

    def outcome(step: str, visit: int) -> dict[str, Any]:
        return boom("a", 1) if (step, visit) in failures else {"n": visit}

    run = Run.of(yaml, outcome).to_the_end(pick=order.choice)

    terminal = [event for event in run.events if type(event).__name__ in ("PlaybookCompleted", "PlaybookFailed")]
    assert len(terminal) == 1
    assert run.events[-1] is terminal[0]
    assert not run.state.execution.arrivals
    assert set(run.entered()).isdisjoint(run.skipped())
    assert END_KEY == "execution/end"
