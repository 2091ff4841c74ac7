"""What a worker does for an internal command: walk through the expressions with all data, and note their values.

The walk is the planner's own (`leave`, `admits_for`), with another evaluator; the planner repeats it with the answers.
So another place of evaluation is added in four steps:

1. a member of `Place`;
2. a pure function that walks through the expressions and asks its `Evaluator` for each value by a place of its own
   (`loop/in`), called by routing with `LOCALLY`; on `NeedsEvaluation` routing issues `Evaluation(...).issue(...)`;
3. a case in `evaluate` below, which calls it on the worker;
4. a case in `continuing._go_on`, which calls it once more with the answers and goes on. A value may be `Stored` then.

The type checker names the two `match` statements that lack the new member.
"""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

from noetl_core.executions.admission import admits_for
from noetl_core.executions.continuing import left_by
from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.executions.evaluators import Recording
from noetl_core.executions.leaving import leave
from noetl_core.executions.plan import Plan
from noetl_core.executions.staging import open_rows
from noetl_core.executions.state import Execution
from noetl_core.loops.collection import LoopInvalid
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.streams.routing import try_arcs


def evaluate(evaluation: Evaluation, execution: Execution, plan: Plan) -> Recording:
    """The values of all expressions of a place; raises `NeedsEvaluation` while something they read is not loaded."""
    recording = Recording()
    match evaluation.place:
        case Place.ADMIT:
            with suppress(TemplateFailed):  # noted; it is for the planner to say what follows
                admits_for(
                    execution,
                    plan,
                    step=evaluation.step,
                    cause_step=evaluation.consumes[-1],
                    now=evaluation.now,
                    evaluator=recording,
                    chunk=evaluation.chunk,
                )
        case Place.LEAVE:
            left = left_by(evaluation, execution)
            leave(
                execution,
                plan,
                step=left.step,
                activation=left.activation,
                result=left.result,
                now=evaluation.now,
                evaluator=recording,
            )
        case Place.LOOP:
            with suppress(TemplateFailed, LoopInvalid):
                open_rows(
                    execution,
                    plan,
                    step=evaluation.step,
                    activation=evaluation.activation,
                    cause_step=execution.steps[evaluation.step].cause_step,
                    now=evaluation.now,
                    evaluator=recording,
                    chunk=execution.steps[evaluation.step].chunk,
                )
        case Place.CHUNK if evaluation.chunk is not None:
            try_arcs(
                execution,
                plan,
                evaluation.chunk,
                activation=evaluation.activation,
                now=evaluation.now,
                evaluator=recording,
            )
        case Place.CHUNK:
            pass
        case _:
            assert_never(evaluation.place)
    return recording
