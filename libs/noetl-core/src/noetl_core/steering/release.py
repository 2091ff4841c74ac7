"""What follows when an execution is resumed: everything that was held back, in its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from noetl_core.envelope import Draft
from noetl_core.events import Event
from noetl_core.executions.plan import Plan
from noetl_core.fold import State
from noetl_core.imagining import imagine
from noetl_core.recorded import Recorded, as_if_recorded
from noetl_core.steering.state import HeldCause

Decide: TypeAlias = Callable[[State, Recorded, Plan], tuple[Event, ...]]


def release(state: State, resumed: Recorded, plan: Plan, decide: Decide) -> tuple[Event, ...]:
    """One decision for all of them, each on what the ones before it led to; `now()` is the time of the event itself."""
    facts: list[Event] = []
    causes = state.execution.released
    for place, held in enumerate(causes, start=1):
        later = replace(state.execution, released=causes[place:])  # an answer among them is still to come
        state = replace(state, execution=later)
        following = decide(state, _recalled(state, held, resumed), plan)
        facts.extend(following)
        state = imagine(state, following, resumed)
    return tuple(facts)


def _recalled(state: State, held: HeldCause, resumed: Recorded) -> Recorded:
    """The event as deciding sees it."""
    execution = state.execution
    draft = Draft(
        event_type=held.event_type,
        idempotency_key="held",
        event_time=held.event_time,
        node_name=held.node_name,
        command_id=held.command_id,
        meta=held.meta,
    )
    return as_if_recorded(
        draft,
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        execution_id=execution.execution_id,
        stream_version=held.version,
        aggregate_version=0,
        time=resumed.ingest_time,
    )
