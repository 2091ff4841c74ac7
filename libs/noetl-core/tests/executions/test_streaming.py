"""Chunks of running calls, driven purely: told in any rhythm, taken in order, one at a time, and none forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.catalog import to_draft
from noetl_core.causes import is_cause
from noetl_core.commands.events import (
    CallDone,
    CallFailed,
    CommandAbandoned,
    CommandCompleted,
    CommandFailed,
    CommandIssued,
)
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.errors import PlaybookInvalid
from noetl_core.events import Event
from noetl_core.executions.decide import decide
from noetl_core.executions.evaluate import evaluate
from noetl_core.executions.evaluation import Evaluation
from noetl_core.executions.events import PlaybookInitialized, StepEntered, StepExited, StepSkipped
from noetl_core.executions.names import LOADED
from noetl_core.executions.plan import Plan
from noetl_core.fold import State, empty, fold, prune
from noetl_core.payloads import refer_to
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.recorded import as_if_recorded
from noetl_core.state_json import decode_state, encode_state
from noetl_core.streams.events import CallPartial, ChunkRouted
from noetl_core.streams.routing import takes_chunks
from noetl_core.streams.state import MAX_WAITING, Place

START = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTION = 7_000_000_000_000_000_001

STREAM = """
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {chunk_rows: 10}}}
  next: {arcs: [{step: take, on: call.partial}, {step: after}]}
- {step: take, tool: {kind: noop}, next: {arcs: [{step: after}]}}
- {step: after, tool: {kind: noop}}
"""

FIRST = """
executor: {spec: {final_step: last}}
workflow:
- {step: first, tool: {kind: noop}}"""


@dataclass
class Run:
    """An execution in which calls tell chunks and end as the test says; nothing but fold and decide."""

    plan: Plan
    state: State = field(default_factory=lambda: empty(EXECUTION))
    events: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, yaml: str, **workload: Any) -> Run:
        head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
        playbook, _ = parse_playbook(head + yaml, supported=EVERYTHING)
        run = cls(plan=Plan(playbook=playbook, workload={**playbook.workload, **workload}))
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
        self.state = fold(self.state, recorded)
        self.state = decode_state(encode_state(self.state))  # a planner may have been replaced at any moment
        if is_cause(recorded):
            for fact in decide(self.state, recorded, self.plan):
                self.happens(fact)

    def command(self, step: str) -> Command:
        return next(one for one in self.state.commands.values() if one.step == step and one.is_open)

    def tell(self, step: str, *, rows: int = 10, has_more: bool = True, call: int | None = None) -> None:
        command = self.command(step)
        place = command.streamed if call is None or call == command.streamed.call else Place(call=call)
        ref = refer_to(f"{place}".encode(), tenant_id="t", organization_id="o", media_type="application/json")
        self.happens(
            CallPartial(
                command_id=command.command_id,
                step=step,
                task=f"{step}_task",
                call=place.call,
                chunk_index=place.chunk,
                row_count=rows,
                has_more=has_more,
                payload_ref=ref,
                queued=takes_chunks(self.plan, step) or None,
            )
        )

    def finish(self, step: str, *, error: str = "") -> None:
        command = self.command(step)
        context: dict[str, Any] = {"error": {"code": error, "message": "no"}} if error else {}
        result = {"status": "error" if error else "ok", "reference": None, "parent_ref": None, "context": context}
        ids: dict[str, Any] = {"command_id": command.command_id, "step": step}
        self.happens((CallFailed if error else CallDone)(**ids, result=result))
        self.happens((CommandFailed if error else CommandCompleted)(**ids, worker_id="w"))

    def evaluate(self, step: str, *, rows: list[Any], place: str = "chunk", large: bool = False) -> None:
        """A worker answers an internal command with the rows of its chunk at hand."""
        command = self.command(f"{step}:evaluate_{place}")
        evaluation = Evaluation.from_json(command.evaluation or {})
        assert evaluation.chunk is not None
        chunk = replace(evaluation.chunk, reference={**evaluation.chunk.reference, LOADED: rows})
        recording = evaluate(replace(evaluation, chunk=chunk), self.state.execution, self.plan)
        ref = refer_to(b"large", tenant_id="t", organization_id="o", media_type="application/json")
        told = recording.told({one: ref for one in recording.values if large and one.startswith("chunk/set")})
        result = {"status": "ok", "reference": None, "parent_ref": None, "context": {"evaluation": told}}
        ids: dict[str, Any] = {"command_id": command.command_id, "step": command.step}
        self.happens(CallDone(**ids, result=result))
        self.happens(CommandCompleted(**ids, worker_id="w"))

    def lose(self, step: str) -> None:
        command = self.command(step)
        self.happens(
            CommandAbandoned(
                command_id=command.command_id,
                step=step,
                previous_owner="w",
                reclaimer="r",
                prior_lease_until="2026-01-01T00:00:00Z",
                previous_attempt=command.attempt,
                max_attempts=3,
            )
        )

    def running(self) -> list[str]:
        return sorted(command.step for command in self.state.commands.values() if command.is_open)

    def of_type(self, kind: type) -> Sequence[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def taken(self, step: str = "take") -> list[int]:
        return [one.chunk["chunk_index"] for one in self.of_type(StepEntered) if one.step == step and one.chunk]

    @property
    def is_over(self) -> bool:
        return self.state.execution.status.is_final


def test_each_chunk_is_one_activation_and_the_next_one_waits_for_its_end() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.tell("read")

    assert run.running() == ["read", "take"]
    assert run.taken() == [0]
    run.finish("take")
    assert run.taken() == [0, 1]
    assert run.running() == ["read", "take"]


def test_a_step_is_left_when_its_call_has_ended_and_its_last_chunk_is_done_with() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.tell("read", has_more=False)
    run.finish("read")

    assert run.of_type(StepExited) == []
    run.finish("take")
    assert [one.step for one in run.of_type(StepExited)] == ["take"]
    run.finish("take")
    assert [one.step for one in run.of_type(StepExited)] == ["take", "take", "read"]
    assert run.running() == ["after"]
    run.finish("after")
    assert run.is_over
    assert run.state.execution.streams == {}


def test_a_final_step_that_streams_leads_nowhere() -> None:
    run = Run.of(STREAM.replace("step: read", "step: last").replace("workflow:", FIRST))
    run.finish("first")
    run.tell("last", has_more=False)
    run.finish("last")

    assert run.is_over
    assert [one.step for one in run.of_type(StepEntered)] == ["first", "last"]


def test_chunks_that_lead_back_to_the_step_that_told_them_are_refused() -> None:
    stream = "tool: {kind: postgres, command: select 1, spec: {stream: {chunk_rows: 10}}}"
    with pytest.raises(PlaybookInvalid) as refused:
        Run.of(
            f"""
workflow:
- {{step: a, {stream}, next: {{arcs: [{{step: b, on: call.partial}}]}}}}
- {{step: b, {stream}, next: {{arcs: [{{step: c, on: call.partial}}]}}}}
- {{step: c, {stream}, next: {{arcs: [{{step: a, on: call.partial}}, {{step: d, on: call.partial}}]}}}}
- {{step: d, tool: {{kind: noop}}, next: {{arcs: [{{step: a, when: "{{{{ more }}}}"}}]}}}}
"""
        )

    assert [problem.path for problem in refused.value.problems] == [
        f"workflow[{place}].next.arcs[0].on" for place in range(3)
    ]


def test_chunks_that_are_all_taken_before_the_call_ends_leave_it_to_the_call() -> None:
    run = Run.of(STREAM)
    run.tell("read", has_more=False)
    run.finish("take")

    assert run.running() == ["read"]
    run.finish("read")
    assert run.running() == ["after"]


def test_a_join_behind_the_chunks_runs_once_and_last() -> None:
    run = Run.of(STREAM)
    for _ in range(3):
        run.tell("read")
        run.finish("take")
    run.finish("read")
    run.finish("after")

    assert [one.step for one in run.of_type(StepEntered)] == ["read", "take", "take", "take", "after"]
    assert run.is_over


def test_arrivals_at_a_join_do_not_grow_with_the_number_of_chunks() -> None:
    run = Run.of(STREAM)
    for _ in range(20):
        run.tell("read")
        run.finish("take")
        run.state = prune(run.state)

    assert len(run.state.execution.arrivals) == 1
    assert len(encode_state(run.state)) < 4_000
    assert max(len(one.consumes) for one in run.of_type(StepEntered)) == 1


def test_without_rows_the_step_that_takes_chunks_is_skipped() -> None:
    run = Run.of(STREAM)
    run.finish("read")

    assert [one.step for one in run.of_type(StepSkipped)] == ["take"]
    run.finish("after")
    assert run.is_over


def test_a_new_attempt_knows_what_was_told_and_chunks_still_wait_for_their_turn() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.tell("read")
    run.tell("read")
    run.lose("read")

    again = run.command("read")
    assert (again.attempt, again.streamed) == (2, Place(call=0, chunk=3))
    run.tell("read", has_more=False)
    run.finish("read")
    for _ in range(4):
        run.finish("take")
    run.finish("after")

    assert run.taken() == [0, 1, 2, 3]
    assert run.is_over


def test_a_lost_attempt_cannot_queue_a_chunk_any_more() -> None:
    run = Run.of(STREAM)
    lost = run.command("read")
    run.lose("read")
    ref = refer_to(b"x", tenant_id="t", organization_id="o", media_type="application/json")
    run.happens(
        CallPartial(
            command_id=lost.command_id,
            step="read",
            task="t",
            call=0,
            chunk_index=0,
            row_count=1,
            has_more=False,
            payload_ref=ref,
            queued=True,
        )
    )

    assert run.taken() == []
    assert run.command("read").streamed == Place()


def test_when_the_attempts_are_used_up_the_chunks_are_taken_before_the_failure_counts() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.tell("read")
    for _ in range(3):
        run.lose("read")

    assert run.running() == ["take"]
    assert run.of_type(StepExited) == []
    run.finish("take")
    run.finish("take")
    assert run.of_type(StepExited)[-1].error["code"] == "command.attempts_exhausted"
    run.finish("after")  # chunks have led there, and other branches drain
    assert run.is_over
    assert run.state.execution.error is not None


def test_a_call_that_fails_fails_its_step_after_its_chunks() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.finish("read", error="PG_57014")
    run.finish("take")

    assert run.of_type(StepExited)[-1].error["code"] == "PG_57014"


def test_conditions_and_set_see_the_scalars_of_a_chunk() -> None:
    run = Run.of("""
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {}}}
  next:
    arcs:
    - step: small
      on: call.partial
      when: "{{ output.data.row_count < 5 and event.name == 'call.partial' and not result.has_more }}"
      set: {ctx.last: "{{ output.data.chunk_index }}", ctx.seen: "{{ event.payload.row_count }}"}
    - {step: large, on: call.partial, when: "{{ output.row_count >= 5 }}"}
- {step: small, tool: {kind: noop}}
- {step: large, tool: {kind: noop}}
""")
    run.tell("read", rows=10)
    run.tell("read", rows=3, has_more=False)
    assert (run.taken("large"), run.taken("small")) == ([0], [])
    run.finish("large")

    assert (run.taken("large"), run.taken("small")) == ([0], [1])
    assert run.state.execution.variables == {"last": 1, "seen": 3}


def test_a_chunk_that_no_arc_takes_is_passed_over() -> None:
    run = Run.of(STREAM.replace("on: call.partial}", "on: call.partial, when: '{{ output.data.chunk_index % 2 }}'}"))
    for _ in range(4):
        run.tell("read")
    run.finish("take")

    assert run.taken() == [1, 3]
    assert [one.fired for one in run.of_type(ChunkRouted)] == [(), ("take",), (), ("take",)]


WITH_ROWS = (
    "{step: take, on: call.partial, when: '{{ output.data.rows[0].n > 0 }}', set: {ctx.n: '{{ result.rows[0].n }}'}}"
)


def test_a_worker_evaluates_what_reads_the_rows_of_a_chunk_and_the_next_one_waits_for_it() -> None:
    run = Run.of(STREAM.replace("{step: take, on: call.partial}", WITH_ROWS))
    run.tell("read")
    run.tell("read")
    run.tell("read", has_more=False)
    run.finish("read")

    assert (run.running(), run.of_type(ChunkRouted)) == (["read:evaluate_chunk"], [])
    run.evaluate("read", rows=[{"n": 0}])
    assert run.running() == ["read:evaluate_chunk"], "nobody took the first one: it is the turn of the second"
    run.evaluate("read", rows=[{"n": 7}])
    assert run.running() == ["take"]
    assert run.state.execution.variables == {"n": 7}
    run.finish("take")
    run.evaluate("read", rows=[{"n": 8}])
    run.finish("take")
    run.finish("after")

    assert [one.fired for one in run.of_type(ChunkRouted)] == [(), ("take",), ("take",)]
    assert run.taken() == [1, 2]
    assert run.is_over
    assert run.state.execution.error is None


def test_what_cannot_be_evaluated_for_a_chunk_fails_its_step_with_the_reason() -> None:
    run = Run.of(STREAM.replace("{step: take, on: call.partial}", WITH_ROWS))
    run.tell("read")
    run.finish("read:evaluate_chunk", error="payload.not_found")
    run.tell("read", has_more=False)
    run.evaluate("read", rows=["none"])
    run.finish("read")
    run.finish("after")

    first, second = run.of_type(ChunkRouted)
    assert (first.error or {})["code"] == "payload.not_found"
    assert second.fired == (), "what rows lack is undefined, and not above 0"
    assert run.is_over
    assert (run.state.execution.error or {})["step"] == "read"


def test_a_step_that_is_over_waits_for_no_evaluation_of_its_chunks() -> None:
    run = Run.of(STREAM.replace("{step: take, on: call.partial}", WITH_ROWS))
    run.tell("read")
    evaluation = run.command("read:evaluate_chunk")
    run.happens(DeadlinePassed(what="step", step="read", activation=1, deadline="x"))

    assert run.state.commands[evaluation.command_id].status is CommandStatus.STOPPED
    assert run.is_over
    assert not run.state.execution.streams


def test_a_worker_evaluates_whether_a_step_admits_a_chunk_and_for_how_long() -> None:
    run = Run.of("""
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {}}}
  next: {arcs: [{step: take, on: call.partial}]}
- step: take
  tool: {kind: noop}
  spec:
    timeout: "{{ result.rows[0].n }}"
    policy: {admit: {rules: [{when: "{{ result.rows | length == 1 }}", then: {allow: false}}]}}
""")
    run.tell("read")
    run.tell("read", has_more=False)
    run.finish("read")
    assert run.running() == ["take:evaluate_admit"]
    run.evaluate("take", place="admit", rows=[{"n": 1}])
    assert run.running() == ["take:evaluate_admit"], "the first is denied, and it is the turn of the second"
    run.evaluate("take", place="admit", rows=[{"n": 9}, {"n": 1}])

    (entered,) = [one for one in run.of_type(StepEntered) if one.step == "take"]
    assert (entered.timeout_seconds, run.taken()) == (9.0, [1])
    run.finish("take")
    assert run.is_over


def test_a_value_that_no_event_can_carry_is_stored_by_a_worker_for_a_chunk() -> None:
    run = Run.of(
        STREAM.replace("{step: take, on: call.partial}", "{step: take, on: call.partial, set: {ctx.x: '{{ big }}'}}"),
        big="x" * 10_000,
    )
    run.tell("read", has_more=False)
    run.evaluate("read", rows=[], large=True)

    (routed,) = run.of_type(ChunkRouted)
    assert (routed.fired, routed.error) == (("take",), None)
    assert run.state.execution.variables == {}
    assert set(run.state.execution.variable_refs) == {"x"}


def test_inclusive_arcs_give_a_chunk_to_several_steps_and_wait_for_all() -> None:
    run = Run.of("""
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {}}}
  next: {spec: {mode: inclusive}, arcs: [{step: a, on: call.partial}, {step: b, on: call.partial}, {step: end}]}
- {step: a, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
- {step: end, tool: {kind: noop}}
""")
    run.tell("read")
    run.tell("read")
    assert run.running() == ["a", "b", "read"]
    run.finish("a")
    assert run.running() == ["b", "read"]
    run.finish("b")
    assert (run.taken("a"), run.taken("b")) == ([0, 1], [0, 1])


def test_a_step_that_admits_no_chunk_does_not_hold_up_the_next_one() -> None:
    run = Run.of("""
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {}}}
  next: {arcs: [{step: take, on: call.partial}]}
- step: take
  tool: {kind: noop}
  spec:
    policy:
      admit:
        rules:
        - {when: "{{ result.chunk_index == 1 }}", then: {allow: true}}
        - {else: {then: {allow: false}}}
""")
    run.tell("read")
    run.tell("read")
    run.tell("read", has_more=False)
    run.finish("read")
    run.finish("take")

    assert run.taken() == [1]
    assert run.is_over


def test_a_failing_chunk_does_not_stop_the_others_unless_its_step_says_so() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.tell("read", has_more=False)
    run.finish("take", error="X")
    assert run.taken() == [0, 1]

    fast = Run.of(
        STREAM.replace(
            "{step: take, tool: {kind: noop}",
            "{step: take, tool: {kind: noop}, spec: {policy: {failure: {mode: fail_fast}}}",
        )
    )
    fast.tell("read")
    fast.tell("read")
    fast.finish("take", error="X")
    assert fast.is_over


def test_two_streams_into_one_step_take_turns() -> None:
    run = Run.of("""
workflow:
- {step: start, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: one}, {step: two}]}}
- {step: one, tool: {kind: postgres, command: x, spec: {stream: {}}}, next: {arcs: [{step: take, on: call.partial}]}}
- {step: two, tool: {kind: duckdb, command: x, spec: {stream: {}}}, next: {arcs: [{step: take, on: call.partial}]}}
- {step: take, tool: {kind: noop}}
""")
    run.finish("start")
    for _ in range(2):
        run.tell("one")
        run.tell("two")
    for _ in range(4):
        assert run.running().count("take") == 1
        run.finish("take")

    chunks = [(one.cause_step, one.chunk["chunk_index"]) for one in run.of_type(StepEntered) if one.step == "take"]
    assert sorted(chunks) == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    assert [index for source, index in chunks if source == "one"] == [0, 1]


def test_several_calls_of_a_pipeline_stream_one_after_the_other() -> None:
    run = Run.of(STREAM)
    run.tell("read")
    run.tell("read", has_more=False)
    run.tell("read", call=1)
    for _ in range(3):
        run.finish("take")

    chunks = [(one.chunk["call"], one.chunk["chunk_index"]) for one in run.of_type(StepEntered) if one.chunk]
    assert chunks == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("at", "told", "allowed"),
    [
        (Place(), Place(), True),
        (Place(call=0, chunk=3), Place(call=0, chunk=3), True),
        (Place(call=0, chunk=3), Place(call=2, chunk=0), True),
        (Place(call=0, chunk=3), Place(call=0, chunk=4), False),
        (Place(call=0, chunk=3), Place(call=1, chunk=1), False),
    ],
)
def test_chunks_are_told_without_gaps(at: Place, told: Place, allowed: bool) -> None:
    assert at.precedes(told) is allowed


@given(st.lists(st.sampled_from(["tell", "take", "lose"]), max_size=60), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_the_rhythm_every_chunk_is_taken_once_and_in_order(rhythm: list[str], fails: bool) -> None:
    run = Run.of(STREAM)
    told = lost = 0
    for what in rhythm:
        queue = run.state.execution.streams.get("read")
        if what == "tell" and (queue is None or len(queue.waiting) < MAX_WAITING):
            run.tell("read")
            told += 1
        elif what == "take" and "take" in run.running():
            run.finish("take")
        elif what == "lose" and lost < 2:
            run.lose("read")
            lost += 1
    run.finish("read", error="X" if fails else "")
    while not run.is_over:
        (step,) = run.running()
        run.finish(step)

    assert run.taken() == list(range(told))
    exits = [one.step for one in run.of_type(StepExited)]
    assert exits.count("read") == 1
    assert len([one for one in run.of_type(CommandIssued) if one.step == "read"]) == 1 + lost
