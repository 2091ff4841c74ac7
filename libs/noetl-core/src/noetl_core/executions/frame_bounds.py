"""The bounds of the frames of a stage: what is written as a number is one, and templates are rendered once."""

from __future__ import annotations

from typing import Any

from noetl_core.canonical import JsonValue
from noetl_core.executions.evaluators import Evaluator, Stored
from noetl_core.playbook.expressions import render
from noetl_core.playbook.loop_model import FramePolicy
from noetl_core.stages.policy import AMOUNTS, COUNTS, FrameBounds, bounds_of


def frame_bounds(policy: FramePolicy, names: dict[str, object], *, now: str, evaluator: Evaluator) -> FrameBounds:
    """The bounds of a policy; raises `InvalidFramePolicy`, and what evaluating a template raises."""
    values: dict[str, JsonValue] = {}
    for name in (*COUNTS, *AMOUNTS):
        written: Any = getattr(policy, name)
        found = written
        if isinstance(written, str):
            found = evaluator.value(f"frame/{name}", lambda text=written: render(text, names, now=now))  # type: ignore[misc]  # bound here
        values[name] = None if isinstance(found, Stored) else found
    return bounds_of(policy, values)
