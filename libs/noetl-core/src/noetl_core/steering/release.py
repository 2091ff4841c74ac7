"""What follows when an execution is resumed: everything that was held back, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from noetl_core.commands.events import CommandIssued
from noetl_core.envelope import Draft
from noetl_core.events import Event
from noetl_core.executions.open_loops import MAX_BEGUN_AT_ONCE
from noetl_core.executions.plan import Plan
from noetl_core.fold import State
from noetl_core.imagining import imagine
from noetl_core.loops.events import LoopItemStarted
from noetl_core.recorded import Recorded, as_if_recorded
from noetl_core.steering.state import HeldCause
from noetl_core.values import replace

Decide: TypeAlias = Callable[[State, Recorded, Plan], tuple[Event, ...]]


def release(state: State, resumed: Recorded, plan: Plan, decide: Decide) -> tuple[Event, ...]:
    """One decision for all of them, each on what the ones before it led to; `now()` is the time of the event itself."""
    facts: list[Event] = []
    begun: list[str] = []
    causes = state.execution.released
    for place, held in enumerate(causes, start=1):
        later = replace(state.execution, released=causes[place:])  # an answer among them is still to come
        state = replace(state, execution=later)
        following = decide(state, _recalled(state, held, resumed), plan)
        items = [fact for fact in following if _begins_item(fact)]
        others = [fact for fact in following if not _begins_item(fact)]
        state = imagine(state, others, resumed)
        running = sum(state.commands[command_id].is_open for command_id in begun)
        items = items[: 2 * max(MAX_BEGUN_AT_ONCE - running, 0)]  # the others follow with what runs, as always
        state = imagine(state, items, resumed)
        begun += [fact.command_id for fact in items if isinstance(fact, CommandIssued)]
        facts += [*others, *items]
    return tuple(facts)


def _begins_item(fact: Event) -> bool:
    """Whether it is one of the two facts with which an item begins; a decision has those last."""
    if isinstance(fact, CommandIssued):
        return fact.loop_id is not None and fact.attempt == 1
    return isinstance(fact, LoopItemStarted)


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
