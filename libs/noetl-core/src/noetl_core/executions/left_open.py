"""What somebody who ends an execution from outside leaves open: its loops, which end all the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.executions.evaluation import Place
from noetl_core.executions.events import ExecutionCancelled, PlaybookCompleted, PlaybookFailed
from noetl_core.executions.looping import close_loop, never_opened
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import StepStatus
from noetl_core.fold import State
from noetl_core.loops.events import LoopDone
from noetl_core.loops.state import Loop
from noetl_core.stages.events import StageClosed
from noetl_core.stages.fanout import FANOUT, fanin_completed
from noetl_core.stages.fold import close_stage
from noetl_core.stages.shard_events import FaninCompleted

Closing = LoopDone | StageClosed | FaninCompleted
EndOfExecution = ExecutionCancelled | PlaybookCompleted | PlaybookFailed


def unfinished_loops(state: State) -> dict[str, Loop | None]:
    """Loops that have no end, by step; None for one whose collection a worker was asked for and nobody knows."""
    execution = state.execution
    found: dict[str, Loop | None] = {name: loop for name, loop in execution.loops.items() if loop.is_open}
    for command in state.commands.values():
        if not command.evaluation or command.evaluation["place"] != Place.LOOP:
            continue
        name, activation = command.evaluation["step"], command.evaluation["activation"]
        step, loop = execution.steps.get(name), execution.loops.get(name)
        is_in = step is not None and step.status is StepStatus.ACTIVE and step.activation == activation
        if is_in and (loop is None or loop.activation != activation):
            found[name] = None
    return found


def close_left_open(state: State, end: EndOfExecution, plan: Plan) -> tuple[Closing, ...]:
    """The end of every loop that an execution had when it was ended; they follow the end, whose cause they do not know.

    A planner that ends an execution closes its loops before, and leaves none.
    """
    execution, error = state.execution, _why(end)
    facts: list[Closing] = []
    for name, loop in sorted(unfinished_loops(state).items(), key=lambda found: found[0]):
        if loop is not None:
            done = close_loop(execution.execution_id, plan, step=name, loop=loop, error=error)
        else:
            activation = execution.steps[name].activation
            done = never_opened(execution.execution_id, step=name, activation=activation, error=error)
        stage = execution.stages.get(name)
        if stage is not None and stage.is_open:
            facts.append(close_stage(stage, status=done.status))
            if stage.kind == FANOUT:
                facts.append(fanin_completed(done))
        facts.append(done)
    return tuple(facts)


def _why(end: EndOfExecution) -> Mapping[str, Any]:
    match end:
        case ExecutionCancelled():
            return {"kind": "unknown", "code": "execution.cancelled", "message": end.reason or "it was cancelled"}
        case PlaybookFailed() if end.error:
            return end.error
        case _:
            return {"kind": "unknown", "code": "loop.stopped", "message": "the execution has ended"}
