"""What the planner evaluates of a step: the names that its control expressions read, before it starts and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from noetl_core.playbook.model import Assignment, FramePolicy, Step
from noetl_core.playbook.references import Reference, condition_paths, referenced_paths


def references_after(step: Step) -> frozenset[Reference]:
    """Read when the step has ended: its `set`, the conditions of its arcs, and their `set`."""
    found = set(_assigned(step.set))
    for arc in step.next.arcs:
        found |= condition_paths(arc.when)
        found.update(_assigned(arc.set))
    return frozenset(found)


def references_before(step: Step) -> frozenset[Reference]:
    """Read when the step is to start: whether it may, for how long, and over what it loops, how wide."""
    found: set[Reference] = set()
    for rule in step.admit:
        found |= condition_paths(rule.when)
    found.update(_in_templates([step.timeout_template]))
    if step.loop is not None:
        found.update(_in_templates([step.loop.items, step.loop.max_in_flight, *_frame(step.loop.frame)]))
    if step.reduce is not None:
        found.update(_in_templates([step.reduce.max_in_flight, *_frame(step.reduce.frame)]))
    return frozenset(found)


def _assigned(assignments: Iterable[Assignment]) -> Iterator[Reference]:
    return _in_templates([assignment.value for assignment in assignments])


def _frame(policy: FramePolicy | None) -> list[object]:
    return [] if policy is None else list(asdict(policy).values())


def _in_templates(values: list[object]) -> Iterator[Reference]:
    """What the templates in some values read, however deep they stand."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield from referenced_paths(value)
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
