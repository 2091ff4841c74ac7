"""Which arcs take a chunk: `on: call.partial` of the step that is still running, with what the event tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from noetl_core.executions.assignments import Assigned, Surroundings, assign
from noetl_core.executions.evaluators import LOCALLY, Evaluator
from noetl_core.executions.events import CtxUpdated
from noetl_core.executions.leaving import failure_of, update_of
from noetl_core.executions.names import LOADED, arc_names, current_variables
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition
from noetl_core.playbook.model import Arc, ArcEvent, ArcMode, Next
from noetl_core.playbook.views import DataView, OutputView, WithheldView
from noetl_core.streams.events import ChunkRouted
from noetl_core.streams.state import Chunk
from noetl_core.values import replace


def takes_chunks(plan: Plan, step: str) -> bool:
    """Whether any arc of the step waits for chunks; items of a loop fire no arcs."""
    known = plan.playbook.steps[step]
    return known.loop is None and any(arc.on is ArcEvent.CALL_PARTIAL for arc in known.next.arcs)


def try_arcs(
    execution: Execution, plan: Plan, chunk: Chunk, *, activation: int, now: str, evaluator: Evaluator = LOCALLY
) -> tuple[CtxUpdated | None, ChunkRouted]:
    """What is set and which arcs fire for a chunk; an expression that fails is a failure of the step.

    Raises `NeedsEvaluation` when events do not tell enough, as the rows of the chunk.
    """
    routed = ChunkRouted(
        step=chunk.step, activation=activation, task=chunk.task, call=chunk.call, chunk_index=chunk.chunk_index
    )
    try:
        names = _names(execution, plan, chunk, Assigned())
        fired = (
            []
            if chunk.step == plan.playbook.final_step  # §8.5: what the final step would lead to is ignored
            else _fired(plan.playbook.steps[chunk.step].next, names, now, evaluator)
        )
        after = partial(_names, execution, plan, chunk)
        seen = Surroundings(names=after, current=current_variables(execution, plan), now=now)
        assigned = assign(
            [one for arc in fired for one in arc.set], seen, before=Assigned(), evaluator=evaluator, place="chunk/set"
        )
    except TemplateFailed as exc:
        return None, replace(routed, error=failure_of(chunk.step, exc))
    final = plan.playbook.final_step  # §8.5: it runs once, so no chunk is its own
    return update_of(chunk.step, assigned), replace(routed, fired=tuple(a.step for a in fired if a.step != final))


def chunk_view(chunk: Chunk) -> dict[str, object]:
    """A chunk as control expressions see it: everything but its rows, which only a worker can have loaded."""
    rows = chunk.reference[LOADED] if LOADED in chunk.reference else WithheldView("a chunk of rows")
    return {**chunk.scalars, "rows": rows}


def _fired(following: Next, names: Mapping[str, object], now: str, evaluator: Evaluator) -> list[Arc]:
    fired: list[Arc] = []
    for index, arc in enumerate(following.arcs):
        if arc.on is not ArcEvent.CALL_PARTIAL:
            continue
        where = f"`when` of the arc to {arc.step!r}"
        condition = partial(evaluate_condition, arc.when, names, now=now, path=where)
        if evaluator.condition(f"chunk/arcs/{index}/when", condition):
            fired.append(arc)
            if following.mode is ArcMode.EXCLUSIVE:
                break
    return fired


def _names(execution: Execution, plan: Plan, chunk: Chunk, assigned: Assigned) -> dict[str, object]:
    view = chunk_view(chunk)
    names = arc_names(execution, plan, step=chunk.step, result={}, assigned=assigned)
    if not any(isinstance(kept, Mapping) and "result" in kept for kept in (names["ctx"], names["steps"])):
        names["result"] = DataView(view)
    return {
        **names,
        "output": OutputView(envelope={"status": "ok", "ref": dict(chunk.reference), "meta": {}}, result=view),
        "event": {"name": "call.partial", "step": chunk.step, "payload": view},
    }
