"""Whether a step may start, and how long it may take."""

from __future__ import annotations

from functools import partial

from noetl_core.deadlines.timeouts import step_timeout
from noetl_core.executions.evaluators import Evaluator
from noetl_core.executions.names import entry_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.expressions import evaluate_condition
from noetl_core.streams.routing import chunk_view
from noetl_core.streams.state import Chunk


def admits(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    cause_step: str,
    now: str,
    evaluator: Evaluator,
    chunk: Chunk | None = None,
) -> bool:
    """§2: the first admission rule that matches decides before the start; none allows. Raises `TemplateFailed`."""
    names = entry_names(execution, plan, cause_step=cause_step, chunk=chunk_view(chunk) if chunk else None)
    for index, rule in enumerate(plan.playbook.steps[step].admit):
        condition = partial(evaluate_condition, rule.when, names, now=now, path=f"rule {index} of `admit`")
        if evaluator.condition(f"admit/{index}", condition):
            return rule.allow
    return True


def admits_for(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    cause_step: str,
    now: str,
    evaluator: Evaluator,
    chunk: Chunk | None = None,
) -> tuple[bool, float | None]:
    """Whether the step may start, and within how many seconds it must end. Raises `TemplateFailed`."""
    if not admits(execution, plan, step=step, cause_step=cause_step, now=now, evaluator=evaluator, chunk=chunk):
        return False, None
    seconds = step_timeout(execution, plan, step=step, cause_step=cause_step, now=now, evaluator=evaluator, chunk=chunk)
    return True, seconds
