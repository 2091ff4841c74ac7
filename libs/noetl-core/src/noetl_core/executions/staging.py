"""Whether the rows of a loop run one by one or in frames, and how a stage of frames opens."""

from __future__ import annotations

from typing import Final

from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.executions.evaluators import LOCALLY, Evaluator
from noetl_core.executions.frame_bounds import frame_bounds
from noetl_core.executions.looping import open_loop
from noetl_core.executions.names import entry_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.reducing import open_reduce
from noetl_core.executions.state import Execution
from noetl_core.ids import stage_id
from noetl_core.loops.events import LoopStarted
from noetl_core.playbook.loop_model import FramePolicy
from noetl_core.playbook.model import Loop, LoopMode
from noetl_core.playbook.workbook import waits_for_children
from noetl_core.stages.engines import engine_of
from noetl_core.stages.events import StageOpened
from noetl_core.streams.routing import chunk_view
from noetl_core.streams.state import Chunk

MAX_TOLD_ITEMS: Final = 1_000
"""Items of a loop that events tell of one by one (§7.2)."""


def open_rows(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    activation: int,
    cause_step: str,
    now: str,
    evaluator: Evaluator = LOCALLY,
    chunk: Chunk | None = None,
) -> LoopStarted | StageOpened:
    """The loop of an activation as `open_loop` fixes it, or the stage that runs it in frames. Raises as that does."""
    reduce = plan.playbook.steps[step].reduce
    if reduce is not None:
        return open_reduce(
            execution,
            plan,
            reduce,
            step=step,
            activation=activation,
            cause_step=cause_step,
            now=now,
            evaluator=evaluator,
            chunk=chunk,
        )
    opened = open_loop(
        execution,
        plan,
        step=step,
        activation=activation,
        cause_step=cause_step,
        now=now,
        evaluator=evaluator,
        chunk=chunk,
    )
    loop = plan.playbook.steps[step].loop
    if loop is None or not (_runs_in_frames(loop) or _is_too_long(plan, step, opened)):
        return opened
    names = entry_names(execution, plan, cause_step=cause_step, chunk=chunk_view(chunk) if chunk else None)
    policy = loop.frame or FramePolicy()
    if loop.tells_shards:  # §7.6: an item is a frame, and is tried again alone
        policy = FramePolicy(max_attempts=1 + loop.max_item_retries)
    bounds = frame_bounds(policy, names, now=now, evaluator=evaluator)
    return StageOpened(
        stage_id=stage_id(execution_id=execution.execution_id, step=step, activation=activation),
        step=step,
        activation=activation,
        loop_id=opened.loop_id,
        kind="fanout" if loop.mode is LoopMode.FANOUT else "loop",
        mode=opened.mode,
        collection_size=opened.collection_size,
        max_in_flight=opened.max_in_flight,
        policy=bounds.to_json(),
        engine=engine_of(plan.playbook, step),
        pool=plan.pool,
        items=opened.items,
        payload_ref=opened.payload_ref,
    )


def stage_asked_for(execution: Execution, plan: Plan, evaluation: Evaluation) -> str:
    """The stage that an internal command is about: the one it is to open, or that whose step it leads on from.

    Of a loop that runs in frames only because of its length nobody knows it before that is evaluated.
    """
    step, activation = evaluation.step, evaluation.activation
    opened = execution.stages.get(step)
    if opened is not None and opened.activation == activation:
        return opened.stage_id
    written = plan.playbook.steps[step]
    opens = written.reduce is not None or (written.loop is not None and _runs_in_frames(written.loop))
    if evaluation.place is not Place.LOOP or not opens:
        return ""
    return stage_id(execution_id=execution.execution_id, step=step, activation=activation)


def _runs_in_frames(loop: Loop) -> bool:
    return loop.asks_for_frames or loop.mode is LoopMode.FANOUT


def _is_too_long(plan: Plan, step: str, opened: LoopStarted) -> bool:
    """§7.2: more items run as if `frame: {}` were written, unless they wait for playbooks, which no frame can."""
    playbook = plan.playbook
    return opened.collection_size > MAX_TOLD_ITEMS and not waits_for_children(playbook.steps[step], playbook.workbook)
