"""What follows from the end of an attempt at a frame. Pure, like every decision."""

from __future__ import annotations

from noetl_core.events import Event
from noetl_core.executions.continuing import router_for
from noetl_core.executions.plan import Plan
from noetl_core.fold import State
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameEnd


def after_frame(state: State, ended: FrameEnd, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """The step is left when every row has its outcome. Until then slots take frames by themselves."""
    loop = state.execution.loops.get(ended.step)
    if loop is None or loop.loop_id != ended.loop_id or not loop.is_open:
        return ()
    router = router_for(state, plan, cause)
    router.go_on(ended.step)
    return router.facts
