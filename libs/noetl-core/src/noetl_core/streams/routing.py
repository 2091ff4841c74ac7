"""Which arcs take a chunk: `on: call.partial` of the step that is still running, with what the event tells of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from noetl_core.executions.assignments import Assigned, Surroundings, assign
from noetl_core.executions.evaluators import FOR_SURE
from noetl_core.executions.events import CtxUpdated
from noetl_core.executions.leaving import FINAL_CAUSE
from noetl_core.executions.names import LOADED, arc_names, current_variables
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition
from noetl_core.playbook.model import Arc, ArcEvent, ArcMode
from noetl_core.playbook.views import DataView, OutputView, WithheldView
from noetl_core.streams.events import ChunkRouted
from noetl_core.streams.state import Chunk


def takes_chunks(plan: Plan, step: str) -> bool:
    """Whether any arc of the step waits for chunks; items of a loop fire no arcs."""
    known = plan.playbook.steps[step]
    return known.loop is None and any(arc.on is ArcEvent.CALL_PARTIAL for arc in known.next.arcs)


def try_arcs(
    execution: Execution, plan: Plan, chunk: Chunk, *, activation: int, now: str
) -> tuple[CtxUpdated | None, ChunkRouted]:
    """What is set and which arcs fire for a chunk; an expression that fails is a failure of the step."""
    routed = ChunkRouted(
        step=chunk.step, activation=activation, task=chunk.task, call=chunk.call, chunk_index=chunk.chunk_index
    )
    try:
        fired = _fired(execution, plan, chunk, now)
        assigned = _assigned(execution, plan, chunk, fired, now)
    except TemplateFailed as exc:
        error = {"step": chunk.step, "kind": "transform", "code": exc.code, "message": exc.message}
        return None, replace(routed, error=error)
    update = CtxUpdated(step=chunk.step, values=assigned) if assigned else None
    return update, replace(routed, fired=tuple(dict.fromkeys(arc.step for arc in fired)))


def chunk_view(chunk: Chunk) -> dict[str, object]:
    """A chunk as control expressions see it: everything but its rows, which only a worker can have loaded."""
    return {**chunk.scalars, "rows": chunk.reference.get(LOADED) or WithheldView("a chunk of rows")}


def _fired(execution: Execution, plan: Plan, chunk: Chunk, now: str) -> list[Arc]:
    if execution.steps[chunk.step].cause_step == FINAL_CAUSE:
        return []  # §8.5: what the final step would lead to is ignored
    following = plan.playbook.steps[chunk.step].next
    names = _names(execution, plan, chunk)
    fired: list[Arc] = []
    for arc in following.arcs:
        if arc.on is ArcEvent.CALL_PARTIAL and evaluate_condition(arc.when, names, now=now):
            fired.append(arc)
            if following.mode is ArcMode.EXCLUSIVE:
                break
    return fired


def _assigned(execution: Execution, plan: Plan, chunk: Chunk, fired: list[Arc], now: str) -> dict[str, Any]:
    assignments = [one for arc in fired for one in arc.set]
    if not assignments:
        return {}
    current = current_variables(execution, plan)
    seen = Surroundings(names=_names(execution, plan, chunk), current=current, now=now)
    assigned = assign(assignments, seen, before=Assigned(), evaluator=FOR_SURE, place="chunk/set")
    return dict(assigned.variables)


def _names(execution: Execution, plan: Plan, chunk: Chunk) -> dict[str, object]:
    view = chunk_view(chunk)
    return {
        **arc_names(execution, plan, step=chunk.step, result={}, assigned=Assigned()),
        "result": DataView(view),
        "output": OutputView(envelope={"status": "ok", "ref": dict(chunk.reference), "meta": {}}, result=view),
        "event": {"name": "call.partial", "step": chunk.step, "payload": view},
    }
