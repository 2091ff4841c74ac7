"""How an execution begins: at its entry, or, as the redrive of another one, at a step with what that one had."""

from __future__ import annotations

from noetl_core.deadlines.timeouts import execution_timeout
from noetl_core.events import Event
from noetl_core.executions.continuing import router_for, time_of
from noetl_core.executions.events import PlaybookInitialized, WorkflowInitialized
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Arrival
from noetl_core.fold import State
from noetl_core.imagining import imagine
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.recorded import Recorded
from noetl_core.streams.state import Chunk


def begin(state: State, initialized: PlaybookInitialized, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """The facts that follow from the first event of an execution."""
    inherited = tuple(plan.inheritance.parts()) if plan.inheritance is not None else ()
    state = imagine(state, inherited, cause)
    router = router_for(state, plan, cause)
    for fact in inherited:
        router.add(fact)
    entry = initialized.entry_step or plan.playbook.entry_step
    led_by, chunk = initialized.entry_cause, initialized.entry_chunk
    try:
        timeout = execution_timeout(state.execution, plan, now=time_of(cause))
    except TemplateFailed as exc:
        router.add(WorkflowInitialized(entry_step=entry, cause_step=led_by))
        router.fail({"kind": "transform", "code": exc.code, "message": exc.message})
        router.end()
        return router.facts
    router.add(WorkflowInitialized(entry_step=entry, cause_step=led_by, timeout_seconds=timeout, chunk=chunk))
    router.arrive(Arrival(step=entry, cause_step=led_by or "", chunk=Chunk.from_json(chunk) if chunk else None))
    router.advance()
    return router.facts
