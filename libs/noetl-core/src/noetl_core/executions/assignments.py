"""`set` of steps and arcs: what is assigned, in the order in which it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from noetl_core.canonical import JsonValue
from noetl_core.executions.evaluators import Evaluator, Stored
from noetl_core.playbook.expressions import ValueWithheld, render
from noetl_core.playbook.model import Assignment, SetScope
from noetl_core.playbook.views import NotInView, whole_of
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Values by name: of the execution, and of this activation only."""

    variables: Mapping[str, JsonValue | Stored] = field(default_factory=dict)
    step_scope: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What assignments see besides each other."""

    names: Callable[[Assigned], Mapping[str, object]]
    """All names after what was assigned so far, in the order of precedence of the language."""
    current: Mapping[str, Any]
    """The variables of the execution before any of them."""
    now: str


def assign(
    assignments: Sequence[Assignment], seen: Surroundings, *, before: Assigned, evaluator: Evaluator, place: str
) -> Assigned:
    """What has been assigned after these; each sees what the ones before it did. Raises `TemplateFailed`."""
    variables, step_scope = dict(before.variables), dict(before.step_scope)
    for index, assignment in enumerate(assignments):
        here, name = f"{place}/{index}", assignment.path[0]
        if assignment.scope is SetScope.CTX:
            compute = partial(_whole_value, assignment, seen, variables, step_scope, target=variables)
            variables[name] = evaluator.value(here, compute)
        else:
            compute = partial(_whole_value, assignment, seen, variables, step_scope, target=step_scope)
            step_scope[name] = evaluator.between(here, compute)
    return Assigned(variables=variables, step_scope=step_scope)


def _whole_value(
    assignment: Assignment,
    seen: Surroundings,
    variables: Mapping[str, Any],
    step_scope: Mapping[str, Any],
    *,
    target: Mapping[str, Any],
) -> JsonValue:
    """The new value of the whole variable, of which the assignment may change one place only."""
    visible = seen.names(Assigned(variables=variables, step_scope=step_scope))
    value = render(assignment.value, visible, now=seen.now, path=f"`set` of {'.'.join(assignment.path)}")
    name, *below = assignment.path
    if not below:
        return value
    try:
        return put_at(whole_of(target.get(name, seen.current.get(name))), below, value)
    except NotInView as exc:
        raise ValueWithheld(str(exc), expression=str(assignment.value)) from None


def put_at(whole: Any, path: Sequence[str], value: JsonValue) -> JsonValue:
    """A value with one place in it changed; what is in the way and no map gives way."""
    if not path:
        return value
    kept = dict(whole) if isinstance(whole, Mapping) else {}
    kept[path[0]] = put_at(kept.get(path[0]), path[1:], value)
    return kept
