"""What follows from the end of an attempt at a frame. Pure, like every decision."""

from __future__ import annotations

from noetl_core.events import Event
from noetl_core.executions.continuing import router_for
from noetl_core.executions.plan import Plan
from noetl_core.fold import State
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameEnd
from noetl_core.stages.fanout import shard_end


def after_frame(state: State, ended: FrameEnd, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """The step is left when every row has its outcome. Until then slots take frames by themselves."""
    loop = state.execution.loops.get(ended.step)
    if loop is None or loop.loop_id != ended.loop_id or not loop.is_open:
        return ()
    router = router_for(state, plan, cause)
    policy = plan.playbook.steps[ended.step].loop
    if policy is not None and policy.tells_shards and (shard := shard_end(ended)) is not None:
        router.add(shard)
    if not _is_followed(state, ended):
        router.go_on(ended.step)
    return router.facts


def _is_followed(state: State, ended: FrameEnd) -> bool:
    """Whether another end of the same loop was held back behind this one: the loop is not over before that is told."""
    return any(
        held.event_type.startswith("frame.") and held.meta.get("loop_id") == ended.loop_id
        for held in state.execution.released
    )
