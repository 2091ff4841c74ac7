"""The names that control expressions see: event contexts only, never rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.executions.amending import with_failure
from noetl_core.executions.assignments import Assigned
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.loops.state import LOOP_REFERENCE
from noetl_core.playbook.call_facts import fact_paths, known_facts
from noetl_core.playbook.model import LoopMode
from noetl_core.playbook.selection import control_paths, result_view
from noetl_core.playbook.views import DataView, HttpView, OutputView, StepView, WithheldView
from noetl_core.stages.fanout import fanin_of

LOADED = "loaded"
"""Where a worker puts what a result refers to; no event has it."""
LOADED_FACTS = "loaded facts"
"""And where it puts what else is known about the call."""


def arc_names(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    result: Mapping[str, Any],
    assigned: Assigned,
    error: Mapping[str, Any] | None = None,
) -> dict[str, object]:
    """What `when` of an arc that leaves `step` may refer to, in the order of precedence of the language.

    `error` is that of routing itself, if there is one; else it is the call's.
    """
    error = error or (result.get("context") or {}).get("error")
    variables = {**current_variables(execution, plan), **assigned.variables}
    return {
        **({"error": error} if error else {}),
        "result": DataView(known_result(plan, step, result)),
        **variables,
        **_step_views(execution, plan),
        **assigned.step_scope,
        **_fixed_names(execution, plan, variables),
        "step": assigned.step_scope,
        **outcome_names(plan, step=step, result=result, error=error),
    }


def entry_names(
    execution: Execution, plan: Plan, *, cause_step: str, chunk: Mapping[str, object] | None = None
) -> dict[str, object]:
    """What `admit` of a step may refer to: it has no outcome yet, only that of the step that led here."""
    variables = current_variables(execution, plan)
    cause = execution.steps.get(cause_step)
    result = DataView(known_result(plan, cause_step, cause.result)) if cause and cause.result is not None else None
    if chunk is not None:
        result = DataView(chunk)
    return {
        **({"result": result} if result is not None else {}),
        **variables,
        **_step_views(execution, plan),
        **_fixed_names(execution, plan, variables),
    }


def current_variables(execution: Execution, plan: Plan) -> dict[str, object]:
    """The workload with what was set since; variables too large for events can be named and not read here."""
    return {
        **plan.workload,
        **execution.variables,
        **{name: WithheldView(f"variable {name!r}") for name in execution.variable_refs},
    }


def outcome_names(
    plan: Plan, *, step: str, result: Mapping[str, Any], error: Mapping[str, Any] | None
) -> dict[str, object]:
    """The completed call; a failure of routing itself replaces the call's own outcome."""
    known = known_result(plan, step, result)
    status = "error" if error else "ok"
    envelope: dict[str, object] = {
        "status": status,
        "ref": result.get("reference"),
        **_facts(plan, step, result, known),
    }
    if error:  # §4.1: on success there is none, so that `error is defined` tells
        envelope["error"] = error
    output = OutputView(envelope=envelope, result=known)
    policy = plan.playbook.steps[step].loop
    if policy is not None:
        total = (result.get("context") or {}).get("total", 0)
        loop = {"index": max(total - 1, 0), "first": total <= 1, "length": total, "done": True}
        fanin = {"fanin": fanin_of(result.get("context") or {})} if policy.mode is LoopMode.FANOUT else {}
        return {"output": output, "event": {"name": "loop.done", "step": step, "payload": known}, "loop": loop, **fanin}
    name = "call.error" if error else "call.done"
    return {"output": output, "event": {"name": name, "step": step, "payload": known}}


def _facts(plan: Plan, step: str, result: Mapping[str, Any], known: object) -> dict[str, object]:
    """§4.1: what the envelope has of the call besides, as far as its event tells it."""
    context = result.get("context") or {}
    told = {"attempt": context.get("attempts"), "duration_ms": context.get("duration_ms")}
    facts: dict[str, object] = {
        "meta": {name: value for name, value in told.items() if value is not None},
        **known_facts(result, fact_paths(plan.playbook, step), result.get(LOADED_FACTS)),
    }
    if "http" in context:
        facts["http"] = HttpView(status=context["http"]["status"], result=known)
    return facts


def known_result(plan: Plan, step: str, result: Mapping[str, Any]) -> object:
    """A step's result as far as its event tells it; reading more than that fails instead of answering wrongly.

    On a worker that evaluates control expressions the result itself is there, or will be when it is read.
    """
    return with_failure(_known_value(plan, step, result), result)


def _known_value(plan: Plan, step: str, result: Mapping[str, Any]) -> object:
    if LOADED in result:
        return result[LOADED]
    context = result.get("context") or {}
    if result.get("reference") is None and context.get("error") and "select" not in context:
        return {"status": "error", "error": context["error"]}  # nothing was stored: that is all of it
    paths = control_paths(plan.playbook, step)
    if (result.get("reference") or {}).get("type") == LOOP_REFERENCE:
        # What a loop tells does not depend on what is read: nobody has looked for places below its results.
        paths = frozenset(path[:1] for path in paths)
    return result_view(context.get("select") or {}, context.get("unselected") or (), paths)


def _step_views(execution: Execution, plan: Plan) -> dict[str, object]:
    return {
        name: StepView(known_result(plan, name, state.result))
        for name, state in execution.steps.items()
        if state.result is not None
    }


def _fixed_names(execution: Execution, plan: Plan, variables: Mapping[str, object]) -> dict[str, object]:
    execution_id = str(execution.execution_id)
    return {
        "steps": _step_views(execution, plan),
        "ctx": variables,
        "workload": variables,
        "execution_id": execution_id,
        "catalog_id": execution.catalog_id,
        "job": {"uuid": execution_id, "id": execution_id, "execution_id": execution_id},
    }
