"""What must happen next. Pure: the same state, event and plan give the same facts, on every planner, for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from noetl_core.commands.events import CallFailed, CommandAbandoned, CommandCompleted, CommandFailed, CommandIssued
from noetl_core.commands.state import Command
from noetl_core.events import Event
from noetl_core.executions.events import (
    PlaybookCompleted,
    PlaybookFailed,
    PlaybookInitialized,
    StepEntered,
    StepExited,
    StepSkipped,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowInitialized,
)
from noetl_core.executions.names import arc_names, outcome_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Arrival, Execution, StepStatus
from noetl_core.fold import State
from noetl_core.ids import command_id
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition
from noetl_core.playbook.graph import Graph, is_error_arc
from noetl_core.playbook.model import Arc, ArcMode, FailureMode, Next
from noetl_core.recorded import Recorded
from noetl_core.timestamps import format_time

MAX_ACTIVATIONS = 100_000

FINAL_CAUSE = "*"
"""Cause of the final step's activation: the end of everything else. No step can have this name as its cause."""


def is_cause(recorded: Recorded) -> bool:
    """Whether something may have to follow from this event."""
    return isinstance(recorded.content, PlaybookInitialized | CommandCompleted | CommandFailed | CommandAbandoned)


def decide(state: State, recorded: Recorded, plan: Plan) -> tuple[Event, ...]:
    """The facts that follow from one event, given the fold of everything up to it and of all earlier decisions."""
    if state.execution.status.is_final:
        return ()
    content = recorded.content
    match content:
        case PlaybookInitialized():
            entry = plan.playbook.entry_step
            router = _Router(state.execution, plan)
            router.add(WorkflowInitialized(entry_step=entry))
            router.arrive(Arrival(step=entry, cause_step=""))
            router.advance()
            return router.facts
        case CommandCompleted() | CommandFailed():
            command = state.commands[content.command_id]
            step = state.execution.steps[command.step]
            return _route(state.execution, plan, command, step.result or {}, now=_now(recorded))
        case CommandAbandoned():
            return _after_silence(state, state.commands[content.command_id], plan, now=_now(recorded))
        case _:
            return ()


def _now(cause: Recorded) -> str:
    """§6.6: `now()` in a control expression is the time of the event that is decided on."""
    return format_time(cause.envelope.event_time)


def _route(
    execution: Execution, plan: Plan, command: Command, result: Mapping[str, Any], *facts: Event, now: str
) -> tuple[Event, ...]:
    router = _Router(execution, plan)
    for fact in facts:
        router.add(fact)
    exited = leave(execution, plan, step=command.step, activation=command.activation, result=result, now=now)
    router.leave(exited)
    failing_fast = plan.playbook.steps[command.step].failure_mode is FailureMode.FAIL_FAST
    if not exited.handled and failing_fast:
        router.end()
    else:
        router.advance()
    return router.facts


def _after_silence(state: State, command: Command, plan: Plan, *, now: str) -> tuple[Event, ...]:
    """Another attempt while there are any left; then the step fails, and its error arcs may still handle that."""
    if command.attempt < plan.max_attempts:
        following = _issue(
            state.execution,
            plan,
            step=command.step,
            activation=command.activation,
            cause_step=command.cause_step,
            attempt=command.attempt + 1,
        )
        return (following,)
    error = {
        "kind": "unknown",
        "code": "command.attempts_exhausted",
        "retryable": False,
        "message": f"{command.attempt} workers went silent while running this step",
    }
    result = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}
    failed = CallFailed(command_id=command.command_id, step=command.step, result=result)
    return _route(state.execution, plan, command, result, failed, now=now)


def leave(
    execution: Execution, plan: Plan, *, step: str, activation: int, result: Mapping[str, Any], now: str
) -> StepExited:
    """Which arcs fire after an activation; a control expression that fails is a failure of this step, never false."""
    names = arc_names(execution, plan, step=step, result=result)
    following = plan.playbook.steps[step].next
    if execution.steps[step].cause_step == FINAL_CAUSE:
        following = Next()  # §8.5: what the final step would lead to is ignored
    if result.get("status") == "error":
        error = {"step": step, **((result.get("context") or {}).get("error") or {})}
    else:
        try:
            fired = _fire(following.arcs, following.mode, names, now)
        except TemplateFailed as exc:
            error = {"step": step, "kind": "transform", "code": exc.code, "message": exc.message}
        else:
            if fired or not following.arcs or not plan.playbook.no_next_is_error:
                return StepExited(step=step, activation=activation, status="ok", fired=fired)
            error = {"step": step, "kind": "unknown", "code": "next.no_match", "message": "no arc matched"}
    failed = {**names, "error": error, **outcome_names(plan, step=step, result=result, error=error)}
    fired = _fire_error_arcs(following, failed, now, shadowed={*plan.playbook.steps, *plan.workload})
    return StepExited(step=step, activation=activation, status="error", fired=fired, error=error, handled=bool(fired))


def _fire(arcs: Sequence[Arc], mode: ArcMode, names: Mapping[str, object], now: str) -> tuple[str, ...]:
    fired: list[str] = []
    for arc in arcs:
        if evaluate_condition(arc.when, names, now=now):
            fired.append(arc.step)
            if mode is ArcMode.EXCLUSIVE:
                break
    return tuple(dict.fromkeys(fired))


def _fire_error_arcs(
    following: Next, names: Mapping[str, object], now: str, *, shadowed: Collection[str]
) -> tuple[str, ...]:
    """Only arcs that speak of errors are tried; one that cannot be evaluated handles nothing."""
    arcs = [arc for arc in following.arcs if is_error_arc(arc, shadowed=shadowed)]
    try:
        return _fire(arcs, following.mode, names, now)
    except TemplateFailed:
        return ()


def _issue(
    execution: Execution, plan: Plan, *, step: str, activation: int, cause_step: str, attempt: int
) -> CommandIssued:
    return CommandIssued(
        command_id=command_id(
            execution_id=execution.execution_id, step=step, activation=activation, index=0, attempt=attempt
        ),
        step=step,
        activation=activation,
        attempt=attempt,
        pool=plan.pool,
        cause_step=cause_step,
    )


class _Router:
    """Collects the facts of one decision while keeping track of what they change for routing."""

    def __init__(self, execution: Execution, plan: Plan) -> None:
        self._execution = execution
        self._plan = plan
        self._graph = plan.graph
        self._facts: list[Event] = []
        self._active = {name for name, step in execution.steps.items() if step.status is StepStatus.ACTIVE}
        self._activations = {name: step.activation for name, step in execution.steps.items()}
        self._arrivals = list(execution.arrivals)
        self._failure = execution.failure

    @property
    def facts(self) -> tuple[Event, ...]:
        """What was decided, in order."""
        return tuple(self._facts)

    def add(self, fact: Event) -> None:
        """A fact that changes nothing for routing."""
        self._facts.append(fact)

    def arrive(self, arrival: Arrival) -> None:
        """An arc fired into a step."""
        self._arrivals.append(arrival)

    def leave(self, exited: StepExited) -> None:
        """An activation is over."""
        self._facts.append(exited)
        self._active.discard(exited.step)
        self._arrivals += [Arrival(step=target, cause_step=exited.step) for target in exited.fired]
        if self._failure is None and not exited.handled:
            self._failure = exited.error

    def advance(self) -> None:
        """Enter what can be entered, skip what can no longer be reached, and end when nothing is left."""
        for name in list(dict.fromkeys(arrival.step for arrival in self._arrivals)):
            self._enter_if_ready(name)
            if self._failure is not None and self._failure.get("code") == "execution.visit_cap":
                self.end()
                return
        self._skip_unreachable()
        if self._active or self._arrivals:
            return
        final = self._plan.playbook.final_step
        if final is not None and not self._has_run_finally(final):
            self._enter(final, [Arrival(step=final, cause_step=FINAL_CAUSE)])
        else:
            self.end()

    def end(self) -> None:
        """The terminal facts."""
        if self._failure is None:
            self._facts += [WorkflowCompleted(), PlaybookCompleted()]
        else:
            self._facts += [WorkflowFailed(error=self._failure), PlaybookFailed(error=self._failure)]

    def _has_run_finally(self, final: str) -> bool:
        step = self._execution.steps.get(final)
        return step is not None and step.cause_step == FINAL_CAUSE

    def _enter_if_ready(self, name: str) -> None:
        if name in self._active:
            return  # §8.4: activations of one step run one at a time
        waiting = [arrival for arrival in self._arrivals if arrival.step == name]
        back = [arrival for arrival in waiting if self._is_back_edge(arrival)]
        forward = [arrival for arrival in waiting if arrival not in back]
        if forward and not self._can_still_be_reached(name):
            self._enter(name, forward)
        elif back:
            self._enter(name, back[:1])

    def _is_back_edge(self, arrival: Arrival) -> bool:
        return bool(arrival.cause_step) and self._graph.is_back_edge(arrival.cause_step, arrival.step)

    def _can_still_be_reached(self, name: str) -> bool:
        """§8.3: whether an active step, or one that is about to be entered, leads here forward."""
        upstream = self._active | {arrival.step for arrival in self._arrivals}
        return any(other != name and self._graph.reaches(other, name) for other in upstream)

    def _enter(self, name: str, answered: Sequence[Arrival]) -> None:
        activation = self._activations.get(name, 0) + 1
        if activation > MAX_ACTIVATIONS:
            self._failure = {
                "step": name,
                "code": "execution.visit_cap",
                "message": f"a step runs at most {MAX_ACTIVATIONS} times",
            }
            return
        self._activations[name] = activation
        self._active.add(name)
        for arrival in answered:
            if arrival in self._arrivals:
                self._arrivals.remove(arrival)
        cause = answered[-1].cause_step
        self._facts.append(
            StepEntered(
                step=name,
                activation=activation,
                cause_step=cause,
                consumes=tuple(arrival.cause_step for arrival in answered),
            )
        )
        self._facts.append(
            _issue(self._execution, self._plan, step=name, activation=activation, cause_step=cause, attempt=1)
        )

    def _skip_unreachable(self) -> None:
        """§8.3: steps that were never entered and that nothing alive leads to, by any arc."""
        alive = self._active | {arrival.step for arrival in self._arrivals}
        reachable = _reachable(self._graph, alive)
        playbook = self._plan.playbook
        never_reachable = self._graph.unreachable
        for name in playbook.steps:
            if name in self._activations or name in reachable or name in alive or name in never_reachable:
                continue
            if name != playbook.final_step:
                self._activations[name] = 0
                self._facts.append(StepSkipped(step=name))


def _reachable(graph: Graph, sources: Collection[str]) -> set[str]:
    """Everything that any arcs lead to, forward or back."""
    found: set[str] = set()
    pending = list(sources)
    while pending:
        step = pending.pop()
        for target in (*graph.forward[step], *graph.back[step]):
            if target not in found:
                found.add(target)
                pending.append(target)
    return found
