"""Wakes workers for slots of stages that have a frame to run and nobody who runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from noetl_core.append import Hint
from noetl_core.canonical import encode
from noetl_core.children.ending import WORK_KIND
from noetl_core.envelope import Draft
from noetl_core.executions.plan import Plan
from noetl_core.fold import State
from noetl_core.stages.dispatch import HINTED_AT_ONCE, may_dispatch, offered_slots, stage_of
from noetl_core.stages.state import Stage

from noetl_planner.application.turn_parts import TurnRules

FREES = frozenset({"frame.committed", "frame.failed", "frame.abandoned"})
"""What leaves the slot of a frame free, unless it was given the next one at once."""


def hints_for_slots(state: State, plan: Plan, rules: TurnRules) -> list[Hint]:
    """A wake-up for each slot of each stage that could have a frame now, up to a bound."""
    stages = state.execution.stages.values()
    return [
        _hint(state, stage, slot, rules)
        for stage in stages
        if stage.is_open
        for slot in offered_slots(state.execution, plan, stage)
    ]


def hints_for_touched(state: State, drafts: Sequence[Draft], plan: Plan, rules: TurnRules) -> Iterator[Hint]:
    """One for each slot that a turn has left free, not one for each frame."""
    touched = [draft for draft in drafts if draft.stage_id]
    for stage_id in dict.fromkeys(draft.stage_id for draft in touched):
        stage = stage_of(state.execution, stage_id)
        if stage is None or not may_dispatch(state.execution, plan, stage):
            continue
        of_stage = [draft for draft in touched if draft.stage_id == stage_id]
        if any(draft.event_type == "stage.opened" for draft in of_stage):
            slots: Iterable[int] = offered_slots(state.execution, plan, stage)
        else:
            free = set(stage.free_slots())
            freed = [slot for slot in sorted(free.intersection(_freed(of_stage))) if stage.may_take(slot)]
            slots = freed[: stage.frames_left]
        yield from (_hint(state, stage, slot, rules) for slot in slots)


def _freed(drafts: Iterable[Draft]) -> Iterator[int]:
    """Slots of frames that ended, and those that stand as far behind one that was taken as are hinted at once."""
    for draft in drafts:
        if draft.event_type in FREES:
            yield draft.meta["slot"]
        elif draft.event_type == "frame.dispatched":
            yield draft.meta["slot"] + HINTED_AT_ONCE


def _hint(state: State, stage: Stage, slot: int, rules: TurnRules) -> Hint:
    execution_id = state.execution.execution_id
    # The sequence tells apart the times that one slot is free: the bus drops what looks like a repetition.
    what = {"stage_id": stage.stage_id, "slot": slot, "sequence": stage.sequence_of(slot)}
    # Whoever hands the slot on to an executor has to say where it runs, and for whom.
    where = {
        "engine": stage.engine,
        "step": stage.step,
        "tenant_id": state.execution.tenant_id,
        "organization_id": state.execution.organization_id,
    }
    return Hint(
        subject=rules.work_subject(stage.pool, WORK_KIND),
        body=encode({"execution_id": str(execution_id), **what, **where}),
        execution_id=execution_id,
        message_id=f"{execution_id}/{state.stream_version}/{stage.stage_id}/{slot}",
    )
