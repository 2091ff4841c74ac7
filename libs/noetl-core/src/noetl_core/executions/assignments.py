"""`set` of steps and arcs: what the planner assigns from event contexts, in the order in which it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl_core.canonical import JsonValue, encode
from noetl_core.playbook.expressions import TemplateFailed, render
from noetl_core.playbook.model import Assignment, SetScope

MAX_VALUE_BYTES = 8 * 1024
"""What an event carries; larger values are assigned by workers, which can store them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Values by name: of the execution, and of this activation only."""

    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    step_scope: Mapping[str, JsonValue] = field(default_factory=dict)


def assign(
    assignments: Sequence[Assignment],
    names: Mapping[str, object],
    *,
    current: Mapping[str, Any],
    before: Assigned,
    now: str,
) -> Assigned:
    """What has been assigned after these; each sees what the ones before it did. Raises `TemplateFailed`."""
    variables, step_scope = dict(before.variables), dict(before.step_scope)
    for assignment in assignments:
        visible = {**names, **variables, **step_scope, "ctx": {**current, **variables}}
        value = render(assignment.value, visible, now=now)
        size = len(encode(value))
        if size > MAX_VALUE_BYTES:
            raise TemplateFailed(
                f"a value of {size} bytes is too large to be set here, {MAX_VALUE_BYTES} are allowed",
                expression=str(assignment.value),
            )
        target = variables if assignment.scope is SetScope.CTX else step_scope
        name, *below = assignment.path
        target[name] = put_at(target.get(name, current.get(name)), below, value)
    return Assigned(variables=variables, step_scope=step_scope)


def put_at(whole: Any, path: Sequence[str], value: JsonValue) -> JsonValue:
    """A value with one place in it changed; what is in the way and no map gives way."""
    if not path:
        return value
    kept = dict(whole) if isinstance(whole, Mapping) else {}
    kept[path[0]] = put_at(kept.get(path[0]), path[1:], value)
    return kept
