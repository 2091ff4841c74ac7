"""Why nothing happens: every state that waits is told, with what it waits for and since when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from noetl_core.children.state import ParkedCall
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.executions.state import Arrival, Execution, ExecutionStatus, Step, StepStatus
from noetl_core.fold import State
from noetl_core.loops.state import Loop
from noetl_core.payloads import refer_to
from noetl_core.playbook.graph import Graph, build_graph
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.workers import PresentWorker, WaitingRetry, WorkerReport
from noetl_core.steering.state import HeldCause
from noetl_core.why import MAX_REASONS, Reason, ReasonKind, explain

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = NOON + timedelta(minutes=5)


def command(status: CommandStatus, **fields: object) -> Command:
    known: dict[str, object] = {
        "command_id": "c",
        "step": "load",
        "activation": 1,
        "attempt": 1,
        "pool": "default",
        "cause_step": "",
        "issued_at": NOON,
        "issued_version": 3,
    }
    return Command(status=status, **{**known, **fields})  # type: ignore[arg-type]  # fields of a command


def state(*commands: Command, **fields: object) -> State:
    execution = replace(Execution(execution_id=1), **fields)  # type: ignore[arg-type]  # fields of an execution
    return State(
        execution=execution,
        commands={f"{place}": one for place, one in enumerate(commands)},
        event_time_watermark=NOON,
        last_event_type="step.exit",
        last_node_name="load",
    )


def worker(name: str, *, slots: int, busy: int, pool: str = "default") -> PresentWorker:
    report = WorkerReport(worker_id=name, pool=pool, slots=slots, busy=busy)
    return PresentWorker(report=report, started_at=NOON, heard_at=NOW)


def only(found: tuple[Reason, ...]) -> Reason:
    (reason,) = found
    return reason


def graph(workflow: str) -> Graph:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
    return build_graph(parse_playbook(head + workflow)[0])


def test_a_running_call_names_its_worker_its_lease_and_its_attempt() -> None:
    running = command(CommandStatus.STARTED, worker_id="w", attempt=2, lease_until=NOW + timedelta(seconds=30))

    reason = only(explain(state(running), now=NOW))

    assert (reason.kind, reason.step, reason.since) == (ReasonKind.RUNNING, "load", NOON)
    assert reason.text == "step 'load', attempt 2 runs on worker 'w'"
    assert reason.details["worker_id"] == "w"
    assert reason.details["lease_until"] == "2026-01-01T12:05:30.000000Z"


def test_a_call_that_is_tried_again_says_when_and_how_often() -> None:
    running = command(CommandStatus.STARTED, worker_id="w", lease_until=NOW + timedelta(seconds=30))
    tries = [
        WaitingRetry(command_id=one, task="fetch", attempt=3, attempts=5, next_at=NOW + timedelta(seconds=after))
        for one, after in (("another", 1), ("c", 90), ("c", 60))
    ]
    busy = worker("w", slots=1, busy=1)
    present = replace(busy, report=replace(busy.report, retries=tuple(tries)))

    reason = only(explain(state(running), now=NOW, workers=(present,)))

    assert reason.text == (
        "step 'load' runs on worker 'w': task 'fetch' failed, try 3 of 5 comes at 2026-01-01T12:06:00.000000Z"
    )
    assert (reason.details["try"], reason.details["tries"]) == (3, 5)
    assert reason.details["next_try_at"] == "2026-01-01T12:06:00.000000Z"


def test_a_worker_whose_lease_is_over_is_silent() -> None:
    late = command(CommandStatus.CLAIMED, worker_id="w", lease_until=NOW - timedelta(seconds=1))

    reason = only(explain(state(late), now=NOW))

    assert (reason.kind, reason.since) == (ReasonKind.SILENT, NOW - timedelta(seconds=1))


@pytest.mark.parametrize(
    ("workers", "because"),
    [
        (None, "nobody has claimed it yet"),
        ((), "no worker of this pool was heard of lately"),
        ((worker("a", slots=4, busy=0, pool="other"),), "no worker of this pool was heard of lately"),
        ((worker("a", slots=4, busy=4), worker("b", slots=2, busy=2)), "all 6 slots of 2 workers are busy"),
        ((worker("a", slots=4, busy=3),), "1 workers have 1 free slots, it should be claimed at any moment"),
    ],
)
def test_a_call_that_nobody_takes_says_why(workers: tuple[PresentWorker, ...] | None, because: str) -> None:
    reason = only(explain(state(command(CommandStatus.ISSUED)), now=NOW, workers=workers))

    assert reason.kind is ReasonKind.UNCLAIMED
    assert reason.text == f"step 'load' waits for a worker of the pool 'default': {because}"


def test_a_parked_call_names_its_child() -> None:
    pipeline = refer_to(b"{}", tenant_id="t", organization_id="o", media_type="application/json")
    parked = command(CommandStatus.PARKED, parked=ParkedCall(call_id="x", child_execution_id="42", pipeline=pipeline))

    reason = only(explain(state(parked), now=NOW))

    assert (reason.kind, reason.details["child_execution_id"]) == (ReasonKind.PARKED, "42")


def test_an_evaluation_is_told_as_what_it_is() -> None:
    reason = only(explain(state(command(CommandStatus.STARTED, worker_id="w", evaluation={"place": "arcs"})), now=NOW))

    assert reason.text == "the evaluation of conditions of 'load' runs on worker 'w'"


def test_a_join_names_the_steps_that_can_still_reach_it() -> None:
    shape = graph(
        """
- {step: a, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}, {step: d}]}}
- {step: b, next: {arcs: [{step: join}]}}
- {step: c, next: {arcs: [{step: join}]}}
- {step: d}
- {step: join}
"""
    )
    waiting = state(
        steps={
            "a": Step(status=StepStatus.DONE),
            "b": Step(status=StepStatus.DONE),
            "c": Step(status=StepStatus.ACTIVE),
            "d": Step(status=StepStatus.ACTIVE),
        },
        arrivals=(Arrival(step="join", cause_step="b"),),
    )

    reason = only(explain(waiting, now=NOW, graph=shape))

    assert (reason.kind, reason.step) == (ReasonKind.JOIN, "join")
    assert reason.details == {"waits_for": ["c"], "arrived_from": ["b"]}
    assert only(explain(waiting, now=NOW)).details["waits_for"] == ["c", "d"]  # without a playbook, all that run


def test_activations_of_one_step_wait_for_each_other() -> None:
    again = state(steps={"a": Step(status=StepStatus.ACTIVE)}, arrivals=(Arrival(step="a", cause_step="a"),))

    assert only(explain(again, now=NOW)).text == "step 'a' waits until its own activation before has ended"


def test_when_nothing_is_under_way_the_planner_is_asked_for() -> None:
    reason = only(explain(state(), now=NOW))

    assert (reason.kind, reason.since, reason.details) == (
        ReasonKind.PLANNER,
        NOON,
        {"last_event_type": "step.exit"},
    )


def test_a_pause_comes_first_and_explains_why_nobody_claims() -> None:
    held = HeldCause(version=9, event_type="command.completed", event_time=NOON)
    commands = (command(CommandStatus.STARTED, worker_id="w"), command(CommandStatus.ISSUED))
    paused = state(*commands, status=ExecutionStatus.PAUSED, held=(held,))

    found = explain(paused, now=NOW, workers=())

    assert [reason.kind for reason in found] == [ReasonKind.PAUSED, ReasonKind.UNCLAIMED, ReasonKind.RUNNING]
    assert found[0].text.endswith("until it is resumed, and 1 events wait to be decided on")
    assert found[1].text.endswith(": claims are refused meanwhile")
    assert (found[0].since, found[0].details) == (None, {"held": 1})
    just_now = explain(replace(paused, last_event_type="execution.paused"), now=NOW)
    assert just_now[0].since == NOON


def test_what_has_ended_waits_for_nothing_but_its_family() -> None:
    failed = state(
        status=ExecutionStatus.FAILED, ended_at=NOON, error={"code": "PY_ValueError", "message": "no"}, cascades=False
    )
    cancelled = state(status=ExecutionStatus.CANCELLED, ended_at=NOON, cascades=True, children=3)

    reason = only(explain(failed, now=NOW))
    assert (reason.text, reason.since) == ("it has ended, FAILED: no", NOON)
    assert reason.details == {"status": "FAILED", "code": "PY_ValueError"}
    assert [one.kind for one in explain(cancelled, now=NOW)] == [ReasonKind.ENDED, ReasonKind.CASCADE]


def test_a_loop_tells_how_far_it_is_and_its_commands_which_item_they_run() -> None:
    loop = Loop(
        loop_id="loop_1_load_1",
        activation=1,
        mode="parallel",
        total=100,
        max_in_flight=8,
        begun=45,
        success=35,
        failed=2,
    )
    running = command(CommandStatus.STARTED, worker_id="w", loop_id="loop_1_load_1", loop_index=44)

    found = explain(state(running, loops={"load": loop, "past": replace(loop, status="ok")}), now=NOW)

    assert [reason.kind for reason in found] == [ReasonKind.LOOP, ReasonKind.RUNNING]
    assert found[0].text == (
        "the loop of step 'load' has 37 of 100 items behind it, 2 of them failed; 8 are under way, at most 8 at a time"
    )
    assert found[0].details["ended"] == 37
    assert found[1].text == "item 44 of step 'load' runs on worker 'w'"
    assert found[1].details["loop_iteration_index"] == 44


def test_the_next_deadline_is_told_last() -> None:
    soon, later = NOW + timedelta(seconds=9), NOW + timedelta(hours=1)
    waiting = state(
        command(CommandStatus.STARTED, worker_id="w"),
        steps={"load": Step(status=StepStatus.ACTIVE, activation=1, deadline=soon)},
        deadline=later,
    )

    assert [reason.kind for reason in explain(waiting, now=NOW)] == [ReasonKind.RUNNING, ReasonKind.DEADLINE]
    told = explain(waiting, now=NOW)[-1]
    assert told.text == "step 'load' has a deadline: it ends at 2026-01-01T12:05:09.000000Z at the latest"
    assert told.details == {"of": "step", "deadline": "2026-01-01T12:05:09.000000Z"}
    late = explain(waiting, now=later)[-1]
    assert late.text == "step 'load' has a deadline: its time is up, which ends it at any moment"


def test_of_thousands_only_some_are_told_the_most_pressing_first() -> None:
    many = [command(CommandStatus.STARTED, worker_id="w", issued_at=NOON + timedelta(seconds=n)) for n in range(200)]
    found = explain(state(*many, command(CommandStatus.ISSUED)), now=NOW)

    assert len(found) == MAX_REASONS + 1
    assert found[0].kind is ReasonKind.UNCLAIMED
    assert (found[-1].kind, found[-1].details) == (ReasonKind.MORE, {"running": 151})
