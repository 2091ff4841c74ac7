"""How many seconds a step or an execution has, as its playbook says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Final

from noetl_core.executions.evaluators import Evaluator
from noetl_core.executions.names import entry_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.expressions import TemplateFailed, render
from noetl_core.playbook.model import Step
from noetl_core.streams.routing import chunk_view
from noetl_core.streams.state import Chunk

MAX_SECONDS: Final = 10 * 366 * 86_400.0
"""Ten years: whoever allows more means that there is no hurry, and dates do not go on for ever."""


def execution_timeout(execution: Execution, plan: Plan, *, now: str) -> float | None:
    """Seconds for the whole execution; raises `TemplateFailed`."""
    playbook = plan.playbook
    if playbook.timeout_template is None:
        return _bounded(playbook.timeout_seconds)
    return rendered_seconds(playbook.timeout_template, entry_names(execution, plan, cause_step=""), now=now)


def written_timeout(step: Step) -> float | None:
    """The seconds of a step as they are written, if they are no template."""
    return _bounded(step.timeout_seconds)


def step_timeout(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    cause_step: str,
    now: str,
    evaluator: Evaluator,
    chunk: Chunk | None = None,
) -> float | None:
    """Seconds for an activation that is about to begin; raises `TemplateFailed`."""
    described = plan.playbook.steps[step]
    if described.timeout_template is None:
        return written_timeout(described)
    names = entry_names(execution, plan, cause_step=cause_step, chunk=chunk_view(chunk) if chunk else None)
    value = evaluator.value("timeout", partial(render, described.timeout_template, names, now=now, path="spec.timeout"))
    return _seconds(value, described.timeout_template)


def rendered_seconds(template: str, names: Mapping[str, object], *, now: str | None) -> float:
    """The seconds that a template gives: a number above 0, or the text of one; raises `TemplateFailed`."""
    return _seconds(render(template, names, now=now), template)


def _seconds(value: object, template: str) -> float:
    seconds = _number(value)
    if seconds is None or not seconds > 0:
        raise TemplateFailed(f"a timeout is a number of seconds above 0, not {value!r:.100}", expression=template)
    return min(seconds, MAX_SECONDS)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, MAX_SECONDS)
