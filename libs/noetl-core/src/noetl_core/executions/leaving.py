"""How an activation is left: what is set, which arcs fire, and whether a failure is handled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_core.executions.assignments import Assigned, assign
from noetl_core.executions.events import CtxUpdated, StepExited
from noetl_core.executions.names import arc_names, current_variables, outcome_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition
from noetl_core.playbook.graph import is_error_arc
from noetl_core.playbook.model import Arc, ArcMode, Assignment, Next

FINAL_CAUSE = "*"
"""Cause of the final step's activation: the end of everything else. No step can have this name as its cause."""


def leave(
    execution: Execution, plan: Plan, *, step: str, activation: int, result: Mapping[str, Any], now: str
) -> tuple[CtxUpdated | None, StepExited]:
    """What is set and which arcs fire after an activation.

    A control expression that fails is a failure of this step, never false.
    """
    following = plan.playbook.steps[step].next
    if execution.steps[step].cause_step == FINAL_CAUSE:
        following = Next()  # §8.5: what the final step would lead to is ignored
    call_error = (result.get("context") or {}).get("error") or {} if result.get("status") == "error" else None
    assigned = Assigned()
    if call_error is not None:
        error = {"step": step, **call_error}
    else:
        scope = _Scope(execution, plan, step, result, now)
        try:
            assigned = scope.assign(plan.playbook.steps[step].set, assigned)
            fired = scope.fire(following.arcs, following.mode, assigned)
            assigned = scope.assign([one for arc in fired for one in arc.set], assigned)
        except TemplateFailed as exc:
            error = {"step": step, "kind": "transform", "code": exc.code, "message": exc.message}
        else:
            if fired or not following.arcs or not plan.playbook.no_next_is_error:
                exited = StepExited(step=step, activation=activation, status="ok", fired=_targets(fired))
                return _update(step, assigned), exited
            error = {"step": step, "kind": "unknown", "code": "next.no_match", "message": "no arc matched"}
    fired, assigned = _handle(_Scope(execution, plan, step, result, now, error), following, assigned)
    exited = StepExited(
        step=step, activation=activation, status="error", fired=_targets(fired), error=error, handled=bool(fired)
    )
    return _update(step, assigned), exited


def _targets(arcs: Sequence[Arc]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(arc.step for arc in arcs))


def _update(step: str, assigned: Assigned) -> CtxUpdated | None:
    return CtxUpdated(step=step, values=dict(assigned.variables)) if assigned.variables else None


def _handle(scope: _Scope, following: Next, assigned: Assigned) -> tuple[Sequence[Arc], Assigned]:
    """§8.2: only arcs that speak of errors are tried; one that cannot be evaluated handles nothing."""
    shadowed = {*scope.plan.playbook.steps, *scope.plan.workload, *scope.execution.variables}
    arcs = [arc for arc in following.arcs if is_error_arc(arc, shadowed=shadowed)]
    try:
        fired = scope.fire(arcs, following.mode, assigned)
        return fired, scope.assign([one for arc in fired for one in arc.set], assigned)
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
    error: Mapping[str, Any] | None = None

    def names(self, assigned: Assigned) -> dict[str, object]:
        names = arc_names(self.execution, self.plan, step=self.step, result=self.result, assigned=assigned)
        if self.error is not None:
            names["error"] = self.error
            names.update(outcome_names(self.plan, step=self.step, result=self.result, error=self.error))
        return names

    def assign(self, assignments: Sequence[Assignment], before: Assigned) -> Assigned:
        if not assignments:
            return before
        current = current_variables(self.execution, self.plan)
        return assign(assignments, self.names(before), current=current, before=before, now=self.now)

    def fire(self, arcs: Sequence[Arc], mode: ArcMode, assigned: Assigned) -> Sequence[Arc]:
        names = self.names(assigned)
        fired: list[Arc] = []
        for arc in arcs:
            if evaluate_condition(arc.when, names, now=self.now):
                fired.append(arc)
                if mode is ArcMode.EXCLUSIVE:
                    break
        return fired
