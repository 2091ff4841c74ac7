"""How an activation is left: what is set, which arcs fire, and whether a failure is handled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from noetl_core.errors import InvalidInput
from noetl_core.executions.amending import amended
from noetl_core.executions.assignments import Assigned, Surroundings, assign
from noetl_core.executions.evaluators import HANDLING, LOCALLY, EvaluationFailed, Evaluator, Stored
from noetl_core.executions.events import CtxUpdated, StepExited
from noetl_core.executions.names import arc_names, current_variables
from noetl_core.executions.plan import Plan, runs_once
from noetl_core.executions.redriven_rows import runs_failed_rows
from noetl_core.executions.state import Execution
from noetl_core.executions.step_scope import scope_of
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition
from noetl_core.playbook.graph import is_error_arc
from noetl_core.playbook.model import Arc, ArcMode, Assignment, Next
from noetl_core.values import dataclass, replace

FINAL_CAUSE = "*"
"""Cause of the final step's activation where no arc has led to it: the end of everything else."""


def leave(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    activation: int,
    result: Mapping[str, Any],
    now: str,
    evaluator: Evaluator = LOCALLY,
) -> tuple[CtxUpdated | None, StepExited]:
    """What is set and which arcs fire after an activation.

    A control expression that fails is a failure of this step, never false. Raises `NeedsEvaluation` when events do
    not tell enough: then nothing is decided yet, and a worker walks through the same expressions with all data.
    """
    following = Next()  # §8.5: what the final step would lead to is ignored; §7.8: so is where rows that failed lead
    if step != plan.playbook.final_step and not runs_failed_rows(execution, step):
        following = without_partial(plan.playbook.steps[step].next)
    call_error = (result.get("context") or {}).get("error") or {} if result.get("status") == "error" else None
    assigned = Assigned(step_scope=scope_of(result))
    if call_error is not None:
        error = {"step": step, **call_error}
        if plan.playbook.steps[step].loop is not None:
            scope = _Scope(execution, plan, step, result, now, evaluator, error, f"{HANDLING}loop/")
            return _after_failed_loop(scope, activation, following)
    else:
        scope = _Scope(execution, plan, step, result, now, evaluator)
        try:
            assigned = scope.assign("set", plan.playbook.steps[step].set, assigned)
            fired = scope.fire(following, assigned)
            assigned = scope.assign_fired(fired, assigned)
        except TemplateFailed as exc:
            error = failure_of(step, exc)
        else:
            if fired or not following.arcs or not plan.playbook.no_next_is_error:
                exited = StepExited(step=step, activation=activation, status="ok", fired=targets_of(plan, fired))
                return update_of(step, assigned), exited
            error = {"step": step, "kind": "unknown", "code": "next.no_match", "message": "no arc matched"}
    amends = call_error is None
    if amends:
        result = amended(result, error)
        failed = replace(execution.steps[step], result=result)
        execution = replace(execution, steps={**execution.steps, step: failed})
    scope = _Scope(execution, plan, step, result, now, evaluator, error, HANDLING)
    fired, assigned = _handle(scope, following, assigned)
    exited = StepExited(
        step=step,
        activation=activation,
        status="error",
        fired=targets_of(plan, fired),
        error=error,
        handled=bool(fired),
        amends=amends or None,
    )
    return update_of(step, assigned), exited


def _after_failed_loop(scope: _Scope, activation: int, following: Next) -> tuple[CtxUpdated | None, StepExited]:
    """§8.2: all arcs are tried, and only one that speaks of errors handles the failure."""
    try:
        assigned = scope.assign(f"{scope.place}set", scope.plan.playbook.steps[scope.step].set, Assigned())
        fired = scope.fire(following, assigned)
        assigned = scope.assign_fired(fired, assigned)
    except TemplateFailed:
        fired, assigned = _handle(replace(scope, place=HANDLING), following, Assigned())
    exited = StepExited(
        step=scope.step,
        activation=activation,
        status="error",
        fired=targets_of(scope.plan, fired),
        error=scope.error,
        handled=any(is_error_arc(arc, shadowed=scope.shadowed) for arc in fired),
    )
    return update_of(scope.step, assigned), exited


def failure_of(step: str, exc: InvalidInput) -> dict[str, Any]:
    """The error of a step whose control expressions have no value."""
    kind = exc.kind if isinstance(exc, EvaluationFailed) else "transform"
    return {"step": step, "kind": kind, "code": exc.code, "message": exc.message}


def failed_entry(error: Mapping[str, Any]) -> dict[str, Any]:
    """The result of an activation that failed before anything ran."""
    return {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}


def without_partial(following: Next) -> Next:
    """What a step leads to when it has ended; arcs that take chunks have been tried by then."""
    return replace(following, arcs=tuple(arc for arc in following.arcs if arc.on is None))


def targets_of(plan: Plan, arcs: Sequence[Arc]) -> tuple[str, ...]:
    """Where fired arcs lead: each is one activation, but for steps that run once for all arcs into them."""
    targets: list[str] = []
    for arc in arcs:
        if arc.step not in targets or not runs_once(plan, arc.step):
            targets.append(arc.step)
    return tuple(targets)


def update_of(step: str, assigned: Assigned) -> CtxUpdated | None:
    """What was assigned to variables of the execution; values that a worker has stored are told by reference."""
    if not assigned.variables:
        return None
    refs = {name: value.ref.to_json() for name, value in assigned.variables.items() if isinstance(value, Stored)}
    values = {name: value for name, value in assigned.variables.items() if name not in refs}
    return CtxUpdated(step=step, values=values, refs=refs or None)


def _handle(scope: _Scope, following: Next, assigned: Assigned) -> tuple[Sequence[Arc], Assigned]:
    """§8.2: only arcs that speak of errors are tried; one that cannot be evaluated handles nothing."""
    shadowed = scope.shadowed
    handlers = replace(following, arcs=tuple(arc for arc in following.arcs if is_error_arc(arc, shadowed=shadowed)))
    try:
        fired = scope.fire(handlers, assigned)
        return fired, scope.assign_fired(fired, assigned)
    except TemplateFailed:
        return (), assigned


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where the control expressions after one activation are evaluated."""

    execution: Execution
    plan: Plan
    step: str
    result: Mapping[str, Any]
    now: str
    evaluator: Evaluator
    error: Mapping[str, Any] | None = None
    place: str = ""
    """How the places of its expressions begin."""

    @property
    def shadowed(self) -> set[str]:
        """Names of steps and variables, which mean those and nothing of the runtime."""
        execution = self.execution
        variables = {*self.plan.workload, *execution.variables, *execution.variable_refs}
        return {*self.plan.playbook.steps, *variables}

    def names(self, assigned: Assigned) -> dict[str, object]:
        return arc_names(
            self.execution, self.plan, step=self.step, result=self.result, assigned=assigned, error=self.error
        )

    def assign(self, place: str, assignments: Sequence[Assignment], before: Assigned) -> Assigned:
        if not assignments:
            return before
        current = current_variables(self.execution, self.plan)
        seen = Surroundings(names=self.names, current=current, now=self.now)
        return assign(assignments, seen, before=before, evaluator=self.evaluator, place=place)

    def fire(self, following: Next, assigned: Assigned) -> Sequence[Arc]:
        names = self.names(assigned)
        fired: list[Arc] = []
        for index, arc in enumerate(following.arcs):
            where = f"`when` of the arc to {arc.step!r}"
            condition = partial(evaluate_condition, arc.when, names, now=self.now, path=where)
            if self.evaluator.condition(f"{self.place}arcs/{index}/when", condition):
                fired.append(arc)
                if following.mode is ArcMode.EXCLUSIVE:
                    break
        return fired

    def assign_fired(self, fired: Sequence[Arc], assigned: Assigned) -> Assigned:
        assignments = [one for arc in fired for one in arc.set]
        return self.assign(f"{self.place}arcs/set", assignments, assigned)
