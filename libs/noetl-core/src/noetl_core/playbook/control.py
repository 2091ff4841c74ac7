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


def control_texts(step: Step) -> Iterator[tuple[str, str]]:
    """Every text that the planner evaluates for a step, and the key of the step that it stands below."""
    for key, values in (
        ("set", [assignment.value for assignment in step.set]),
        ("next", [arc.when for arc in step.next.arcs]),
        ("next", [assignment.value for arc in step.next.arcs for assignment in arc.set]),
        ("spec", [step.timeout_template, *(rule.when for rule in step.admit)]),
        ("loop", [step.loop.items, step.loop.max_in_flight, *_frame(step.loop.frame)] if step.loop else []),
        ("reduce", [step.reduce.max_in_flight, *_frame(step.reduce.frame)] if step.reduce else []),
    ):
        yield from ((key, text) for text in _texts(list(values)))


def _assigned(assignments: Iterable[Assignment]) -> Iterator[Reference]:
    return _in_templates([assignment.value for assignment in assignments])


def _frame(policy: FramePolicy | None) -> list[object]:
    return [] if policy is None else list(asdict(policy).values())


def _in_templates(values: list[object]) -> Iterator[Reference]:
    """What the templates in some values read, however deep they stand."""
    for text in _texts(values):
        yield from referenced_paths(text)


def _texts(values: list[object]) -> Iterator[str]:
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
