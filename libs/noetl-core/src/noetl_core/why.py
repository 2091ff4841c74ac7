"""What an execution waits for, and since when: a function of its state, for everybody who asks why nothing happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from noetl_core.canonical import JsonValue
from noetl_core.collection.events import COLLECTION_PATH
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.state import DeadlineOf, open_deadlines
from noetl_core.executions.state import Execution, ExecutionStatus, StepStatus
from noetl_core.fold import State
from noetl_core.playbook.graph import Graph
from noetl_core.ports.workers import PresentWorker, WaitingRetry
from noetl_core.timestamps import format_time

MAX_REASONS = 50
"""An execution may have thousands of open commands; nobody reads about more than these."""


class ReasonKind(StrEnum):
    """In the order in which they are told."""

    ENDED = "ended"
    PAUSED = "paused"
    SILENT = "silent"
    UNCLAIMED = "unclaimed"
    LOOP = "loop"
    RUNNING = "running"
    PARKED = "parked"
    JOIN = "join"
    CHUNKS = "chunks"
    CASCADE = "cascade"
    GRACE = "grace"
    PLANNER = "planner"
    DEADLINE = "deadline"
    MORE = "more"


_ORDER = {kind: place for place, kind in enumerate(ReasonKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that an execution waits for; `text` says it to people, `details` to programs."""

    kind: ReasonKind
    text: str
    step: str = ""
    since: datetime | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)


def explain(
    state: State, *, now: datetime, graph: Graph | None = None, workers: Sequence[PresentWorker] | None = None
) -> tuple[Reason, ...]:
    """What it waits for, most pressing first; without a graph joins are told less well, and so on.

    `workers` are those that were heard of lately; None if nobody knows.
    """
    execution = state.execution
    if execution.status.is_final:
        return (_ended(execution), *_cascade(execution))
    reasons = [
        *_paused(state),
        *(
            _command(command, now=now, workers=workers, is_paused=execution.status is ExecutionStatus.PAUSED)
            for command in state.commands.values()
            if command.is_open
        ),
        *_loops(execution),
        *_joins(state, graph),
        *_chunks(execution),
    ]
    if not reasons and execution.path == COLLECTION_PATH and not execution.catalog_id:
        reasons.append(_grace(state))
    if not reasons:
        text = "nothing is under way: the planner has yet to decide what follows the last event"
        reasons.append(
            Reason(
                kind=ReasonKind.PLANNER,
                text=text,
                step=state.last_node_name,
                since=state.event_time_watermark,
                details={"last_event_type": state.last_event_type},
            )
        )
    reasons += _deadlines(state, now)
    reasons.sort(key=lambda reason: (_ORDER[reason.kind], reason.since or now))
    return tuple(_cut(reasons))


_MOVING = frozenset(
    {
        ReasonKind.ENDED,
        ReasonKind.PAUSED,
        ReasonKind.SILENT,
        ReasonKind.RUNNING,
        ReasonKind.PARKED,
        ReasonKind.CASCADE,
        ReasonKind.GRACE,
        ReasonKind.DEADLINE,
    }
)
"""Somebody works on it, will be noticed to be dead, was asked to wait, or its time will be up."""


def stalled(reasons: Sequence[Reason]) -> Reason | None:
    """Why it can never go on by itself, None as long as it can.

    It cannot when all that it waits for is a worker of a pool that has none, or a decision that nobody makes: whoever
    asks does so of executions in which nothing has happened for a while.
    """
    if any(reason.kind in _MOVING or _may_be_claimed(reason) for reason in reasons):
        return None
    return next(iter(reasons), None)


def _may_be_claimed(reason: Reason) -> bool:
    return reason.kind is ReasonKind.UNCLAIMED and reason.details.get("workers") != 0


def _grace(state: State) -> Reason:
    """Of a collection of payloads, which is an execution without a playbook."""
    return Reason(
        kind=ReasonKind.GRACE,
        text="payloads that no event reaches are in their grace period; a collection after it goes on with them",
        since=state.event_time_watermark,
        details={"last_event_type": state.last_event_type},
    )


def _cut(reasons: Sequence[Reason]) -> Iterator[Reason]:
    yield from reasons[:MAX_REASONS]
    rest = reasons[MAX_REASONS:]
    if rest:
        counts: dict[str, JsonValue] = {
            kind.value: count for kind in ReasonKind if (count := sum(reason.kind is kind for reason in rest))
        }
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        yield Reason(kind=ReasonKind.MORE, text=f"and {len(rest)} more: {shown}", details=counts)


def _ended(execution: Execution) -> Reason:
    error = execution.error or {}
    because = f": {error.get('message')}" if error.get("message") else ""
    return Reason(
        kind=ReasonKind.ENDED,
        text=f"it has ended, {execution.status.value}{because}",
        since=execution.ended_at,
        details={"status": execution.status.value, **({"code": error["code"]} if error.get("code") else {})},
    )


def _cascade(execution: Execution) -> Iterator[Reason]:
    if execution.cascades:
        yield Reason(
            kind=ReasonKind.CASCADE,
            text="executions that it had started are being cancelled",
            since=execution.ended_at,
            details={"children": execution.children},
        )


def _paused(state: State) -> Iterator[Reason]:
    """Since when is known while nothing has happened to what runs on."""
    execution = state.execution
    if execution.status is not ExecutionStatus.PAUSED:
        return
    held = len(execution.held)
    yield Reason(
        kind=ReasonKind.PAUSED,
        text="it is paused: nothing is issued or claimed until it is resumed"
        + (f", and {held} events wait to be decided on" if held else ""),
        since=state.event_time_watermark if state.last_event_type == "execution.paused" else None,
        details={"held": held},
    )


def _command(command: Command, *, now: datetime, workers: Sequence[PresentWorker] | None, is_paused: bool) -> Reason:
    what = _name(command)
    attempt = f", attempt {command.attempt}" if command.attempt > 1 else ""
    details: dict[str, JsonValue] = {
        "command_id": command.command_id,
        "activation": command.activation,
        "attempt": command.attempt,
        "pool": command.pool,
        **command.of_item,
    }
    if command.is_claimable:
        because, facts = _nobody(command.pool, workers) if not is_paused else ("claims are refused meanwhile", {})
        return Reason(
            kind=ReasonKind.UNCLAIMED,
            text=f"{what}{attempt} waits for a worker of the pool {command.pool!r}: {because}",
            step=command.step,
            since=command.issued_at,
            details={**details, **facts},
        )
    if command.status is CommandStatus.PARKED:
        child = command.parked.child_execution_id if command.parked else ""
        return Reason(
            kind=ReasonKind.PARKED,
            text=f"{what}{attempt} waits for execution {child}, which it has started; it holds no worker",
            step=command.step,
            since=command.issued_at,
            details={**details, "child_execution_id": child},
        )
    lease = {"lease_until": format_time(command.lease_until)} if command.lease_until else {}
    details = {**details, "worker_id": command.worker_id, **lease}
    if command.lease_until is not None and command.lease_until < now:
        then = "when the execution is resumed" if is_paused else "soon"
        return Reason(
            kind=ReasonKind.SILENT,
            text=f"{what}{attempt} runs on {command.worker_id!r}, which is silent: another worker gets it {then}",
            step=command.step,
            since=command.lease_until,
            details=details,
        )
    text = f"{what}{attempt} runs on worker {command.worker_id!r}"
    again = _next_try(command, workers)
    if again is not None:
        next_at = format_time(again.next_at)
        details |= {"task": again.task, "try": again.attempt, "tries": again.attempts, "next_try_at": next_at}
        text += f": task {again.task!r} failed, try {again.attempt} of {again.attempts} comes at {next_at}"
    return Reason(
        kind=ReasonKind.RUNNING,
        text=text,
        step=command.step,
        since=command.issued_at,
        details=details,
    )


def _next_try(command: Command, workers: Sequence[PresentWorker] | None) -> WaitingRetry | None:
    """The call of a command that waits to be tried again, if its worker has said so; the one that comes first."""
    told = [one for worker in workers or () for one in worker.report.retries if one.command_id == command.command_id]
    return min(told, key=lambda one: one.next_at, default=None)


def _name(command: Command) -> str:
    if command.evaluation is not None:
        return f"the evaluation of conditions of {command.step!r}"
    item = "" if command.loop_index is None else f"item {command.loop_index} of "
    return f"{item}step {command.step!r}"


def _nobody(pool: str, workers: Sequence[PresentWorker] | None) -> tuple[str, Mapping[str, JsonValue]]:
    """Why nobody has claimed a command yet."""
    if workers is None:
        return "nobody has claimed it yet", {}
    of_pool = [worker.report for worker in workers if worker.report.pool == pool]
    slots, busy = sum(one.slots for one in of_pool), sum(one.busy for one in of_pool)
    facts: dict[str, JsonValue] = {"workers": len(of_pool), "slots": slots, "busy": busy}
    if not of_pool:
        return "no worker of this pool was heard of lately", facts
    if busy >= slots:
        return f"all {slots} slots of {len(of_pool)} workers are busy", facts
    return f"{len(of_pool)} workers have {slots - busy} free slots, it should be claimed at any moment", facts


def _joins(state: State, graph: Graph | None) -> Iterator[Reason]:
    """Steps that arcs have led to, and that wait: at a join, for their own turn, or for the end of all others."""
    execution = state.execution
    active = [name for name, step in execution.steps.items() if step.status is StepStatus.ACTIVE]
    for name in dict.fromkeys(arrival.step for arrival in execution.arrivals):
        causes: list[JsonValue] = [arrival.cause_step for arrival in execution.arrivals if arrival.step == name]
        waits_for = _waits_for(name, active, graph)
        if not waits_for:
            continue  # It is entered with the next decision.
        listed = ", ".join(repr(step) for step in waits_for)
        text = f"step {name!r} waits at its join for {listed}, which can still lead to it"
        if name in waits_for:
            text = f"step {name!r} waits until its own activation before has ended"
        elif graph is not None and name == graph.final:
            text = f"the final step {name!r} waits for the end of {listed}"
        elif graph is not None and not graph.is_join(name):
            text = f"step {name!r} waits for {listed}, which reads the result of its last activation"
        yield Reason(
            kind=ReasonKind.JOIN,
            text=text,
            step=name,
            details={"waits_for": [*waits_for], "arrived_from": causes},
        )


def _loops(execution: Execution) -> Iterator[Reason]:
    for step, loop in execution.loops.items():
        if not loop.is_open:
            continue
        failed = f", {loop.failed} of them failed" if loop.failed else ""
        yield Reason(
            kind=ReasonKind.LOOP,
            text=f"the loop of step {step!r} has {loop.ended} of {loop.total} items behind it{failed}; "
            f"{loop.running} are under way, at most {loop.max_in_flight} at a time",
            step=step,
            details={
                "loop_id": loop.loop_id,
                "total": loop.total,
                "ended": loop.ended,
                "failed": loop.failed,
                "running": loop.running,
                "max_in_flight": loop.max_in_flight,
            },
        )


def _chunks(execution: Execution) -> Iterator[Reason]:
    for step, queue in execution.streams.items():
        if queue.waiting:
            count = len(queue.waiting)
            yield Reason(
                kind=ReasonKind.CHUNKS,
                text=f"{count} chunks of step {step!r} wait for their turn: one is worked on at a time",
                step=step,
                details={"waiting": count},
            )


def _deadlines(state: State, now: datetime) -> Iterator[Reason]:
    """The one that comes first: what has several waits for no other."""
    first = min(open_deadlines(state.execution, state.commands), default=None)
    if first is None:
        return
    whose = {DeadlineOf.EXECUTION: "the execution", DeadlineOf.COMMAND: f"the wait of step {first.step!r}"}
    what = whose.get(first.what, f"step {first.step!r}")
    until = format_time(first.at)
    passed = "its time is up, which ends it at any moment" if first.at < now else f"it ends at {until} at the latest"
    yield Reason(
        kind=ReasonKind.DEADLINE,
        text=f"{what} has a deadline: {passed}",
        step=first.step,
        details={"of": first.what.value, "deadline": until},
    )


def _waits_for(name: str, active: Sequence[str], graph: Graph | None) -> list[str]:
    if name in active:
        return [name]
    if graph is None or name == graph.final:
        return [*active]
    if not graph.is_join(name):
        return [step for step in active if step in graph.forward[name]]
    return [step for step in active if step in graph.forward and graph.reaches(step, name)]
