"""Deadlines and steering as values: what they are told by, and that they stay small."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from noetl_core.canonical import encode
from noetl_core.deadlines.state import Deadline, DeadlineOf, next_deadline, open_deadlines
from noetl_core.deadlines.timeouts import MAX_SECONDS, rendered_seconds
from noetl_core.executions.state import Execution, ExecutionStatus, Step, StepStatus
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.steering.state import PART_BYTES, Inheritance

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def execution(**fields: object) -> Execution:
    return replace(Execution(execution_id=1), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "seconds"),
    [("{{ 5 }}", 5.0), ("{{ 0.25 }}", 0.25), ("{{ n }}0", 70.0), ("{{ '1e3' }}", 1000.0), ("{{ 1e300 }}", MAX_SECONDS)],
)
def test_seconds_are_a_number_or_the_text_of_one(template: str, seconds: float) -> None:
    assert rendered_seconds(template, {"n": 7}, now=None) == seconds


@pytest.mark.parametrize("template", ["{{ 0 }}", "{{ -1 }}", "{{ 'nan' }}", "{{ true }}", "{{ [1] }}", "{{ none }}"])
def test_anything_else_is_no_number_of_seconds(template: str) -> None:
    with pytest.raises(TemplateFailed, match="above 0"):
        rendered_seconds(template, {}, now=None)


def test_the_earliest_deadline_of_what_is_open_is_the_next_one() -> None:
    steps = {
        "late": Step(status=StepStatus.ACTIVE, activation=2, deadline=at(5)),
        "done": Step(status=StepStatus.DONE, activation=1, deadline=at(1)),
        "free": Step(status=StepStatus.ACTIVE, activation=1),
    }
    running = execution(deadline=at(60), steps=steps)

    assert next_deadline(running, {}) == at(5)
    assert sorted(open_deadlines(running, {})) == [
        Deadline(at=at(5), what=DeadlineOf.STEP, step="late", activation=2),
        Deadline(at=at(60), what=DeadlineOf.EXECUTION),
    ]
    assert next_deadline(replace(running, status=ExecutionStatus.CANCELLED), {}) is None


def test_a_step_of_a_paused_execution_that_waits_for_nothing_is_not_late() -> None:
    steps = {"a": Step(status=StepStatus.ACTIVE, activation=1, deadline=at(5))}

    assert next_deadline(execution(status=ExecutionStatus.PAUSED, steps=steps), {}) is None


def test_each_deadline_has_a_key_of_its_own() -> None:
    keys = {
        Deadline(at=at(1), what=DeadlineOf.EXECUTION).key,
        Deadline(at=at(1), what=DeadlineOf.STEP, step="a", activation=1).key,
        Deadline(at=at(1), what=DeadlineOf.STEP, step="a", activation=2).key,
        Deadline(at=at(1), what=DeadlineOf.STEP, step="a" * 10_000, activation=2).key,
    }

    assert len(keys) == 4
    assert max(map(len, keys)) < 64


def test_an_inheritance_is_told_in_parts_that_fit_into_events_and_loses_nothing() -> None:
    inheritance = Inheritance(
        results={f"s{n}": {"status": "ok", "context": {"x": "y" * 3000}} for n in range(40)},
        values={"small": 1, "large": "z" * 20_000},
        refs={"ref": {"uri": "noetl://x"}},
    )

    parts = list(inheritance.parts())

    assert len(parts) > 5
    together: dict[str, dict[str, object]] = {"results": {}, "values": {}, "refs": {}}
    for part in parts:
        entries = {**part.results, **part.values, **part.refs}
        assert len(encode(entries)) < PART_BYTES + 1000 or len(entries) == 1
        together["results"].update(part.results)
        together["values"].update(part.values)
        together["refs"].update(part.refs)
    assert together == inheritance.to_json()
    assert list(Inheritance().parts()) == []
    assert Inheritance.from_json(inheritance.to_json()) == inheritance
