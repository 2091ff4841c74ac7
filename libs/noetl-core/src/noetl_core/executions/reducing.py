"""How a step with `reduce` runs: a stage over what other steps have put out, one frame for each partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from noetl_core.executions.evaluators import LOCALLY, Evaluator, Stored
from noetl_core.executions.frame_bounds import frame_bounds
from noetl_core.executions.names import entry_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Arrival, Execution
from noetl_core.ids import epoch_id, stage_id
from noetl_core.locator import loop_locator
from noetl_core.loops.collection import width_of
from noetl_core.loops.state import LOOP_REFERENCE, Loop
from noetl_core.playbook.expressions import render
from noetl_core.playbook.graph import Graph
from noetl_core.playbook.loop_model import FramePolicy
from noetl_core.playbook.model import LoopMode, Playbook, Reduce
from noetl_core.stages.engines import engine_of
from noetl_core.stages.events import StageOpened
from noetl_core.stages.partitions import UNITED_KEYS
from noetl_core.streams.routing import chunk_view
from noetl_core.streams.state import Chunk
from noetl_core.values import replace

REDUCE: Final = "reduce"
"""The kind of stage."""
WIDTH: Final = "reduce.spec.max_in_flight"


def awaits_partitions(
    playbook: Playbook, graph: Graph, name: str, active: Collection[str], arrivals: Collection[Arrival]
) -> bool:
    """§7.7: whether something that is alive gives, or still leads to, what the step reduces.

    What only follows from the step itself is not waited for, nor another visit of a step that waits until this one has
    read the last: that would be for ever. The final step waits for everything.
    """
    reduce = playbook.steps[name].reduce
    if reduce is None:
        return False
    read_first = {arrival.cause_step for arrival in arrivals if arrival.step == name}
    waiting = {arrival.step for arrival in arrivals} - read_first - {playbook.final_step or ""}
    alive = {*active, *waiting}
    after = _following(playbook, graph, name)
    return any(
        other == source or graph.reaches(other, source)
        for other in alive
        if other != name and other not in after
        for source in reduce.sources
    )


def open_reduce(
    execution: Execution,
    plan: Plan,
    reduce: Reduce,
    *,
    step: str,
    activation: int,
    cause_step: str,
    now: str,
    evaluator: Evaluator = LOCALLY,
    chunk: Chunk | None = None,
) -> StageOpened:
    """The stage of an activation: whose output it reads is fixed here, and read by those who run its frames.

    Raises as `open_loop` does.
    """
    names = entry_names(execution, plan, cause_step=cause_step, chunk=chunk_view(chunk) if chunk else None)
    width = evaluator.value("loop/max_in_flight", lambda: render(reduce.max_in_flight, names, now=now, path=WIDTH))
    bounds = frame_bounds(reduce.frame or FramePolicy(), names, now=now, evaluator=evaluator)
    return StageOpened(
        stage_id=stage_id(execution_id=execution.execution_id, step=step, activation=activation),
        step=step,
        activation=activation,
        loop_id=epoch_id(execution_id=execution.execution_id, step=step, attempt=activation),
        kind=REDUCE,
        mode=LoopMode.PARALLEL.value,
        collection_size=reduce.partitions,
        max_in_flight=min(width_of(None if isinstance(width, Stored) else width), reduce.partitions),
        policy=replace(bounds, max_rows=1, process="frame", on_failure="fail").to_json(),
        engine=engine_of(plan.playbook, step),
        pool=plan.pool,
        sources=tuple(source for name in reduce.sources if (source := _source(execution, name)) is not None),
        parent_stage_id=next(
            (execution.stages[name].stage_id for name in reduce.sources if name in execution.stages), None
        ),
    )


def reduced(execution_id: int, loop: Loop) -> Mapping[str, Any]:
    """The result of a step whose partitions all have an outcome: the one output, or all of them together."""
    if loop.failed or loop.success < loop.total:
        return _failed(loop)
    if loop.outcome is not None:
        return loop.outcome
    reference = {
        "type": LOOP_REFERENCE,
        "ref_id": str(loop_locator(execution_id=execution_id, loop_id=loop.loop_id)),
        "loop_id": loop.loop_id,
        "from_version": loop.started_version or 1,
    }
    select = {"/status": "success", "/partition_count": loop.total}
    unselected = sorted(f"/{key}" for key in UNITED_KEYS if f"/{key}" not in select)
    context = {"reduce": True, "total": loop.total, "select": select, "unselected": unselected}
    return {"status": "ok", "reference": reference, "parent_ref": None, "context": context}


def _failed(loop: Loop) -> Mapping[str, Any]:
    first = loop.first_error or {}
    error = {
        "kind": "unknown",
        "code": first.get("code") or "frame.attempts_exhausted",
        "message": str(first.get("message") or "a partition could not be reduced"),
        "retryable": False,
    }
    return {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}


def _source(execution: Execution, name: str) -> Mapping[str, Any] | None:
    """Where the output of a step is found; nothing if it was skipped, never ran, or failed as a whole."""
    step = execution.steps.get(name)
    result = step.result if step else None
    reference = (result or {}).get("reference")
    if result is None or not reference:
        return None
    if reference.get("type") != "loop" and result.get("status") == "error":
        return None
    return {"step": name, "reference": dict(reference)}


def _following(playbook: Playbook, graph: Graph, name: str) -> set[str]:
    """Steps that arcs, or the output of what they lead to, lead to from this one."""
    readers: dict[str, list[str]] = {}
    for other, step in playbook.steps.items():
        for source in step.reduce.sources if step.reduce else ():
            readers.setdefault(source, []).append(other)
    found: set[str] = set()
    pending = [name]
    while pending:
        one = pending.pop()
        for following in (*graph.forward[one], *readers.get(one, ())):
            if following not in found:
                found.add(following)
                pending.append(following)
    return found - {name}
