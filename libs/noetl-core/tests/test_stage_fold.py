"""What a stage keeps of its slots is bounded by what a stage may have, whatever a forged event says."""

from __future__ import annotations

import pytest
from noetl_core.errors import Corrupt
from noetl_core.executions.events import StepEntered
from noetl_core.fold import State, empty, fold_all
from noetl_core.ids import epoch_id, frame_id, stage_id
from noetl_core.loops.collection import MAX_IN_FLIGHT
from noetl_core.stages.events import FrameDispatched, StageOpened
from noetl_core.stages.policy import FrameBounds
from noetl_testkit.histories import EXECUTION, History, initialized

STEP = "each"
STAGE = stage_id(execution_id=EXECUTION, step=STEP, activation=1)
LOOP = epoch_id(execution_id=EXECUTION, step=STEP, attempt=1)


def opened(*, slots: int) -> StageOpened:
    return StageOpened(
        stage_id=STAGE,
        step=STEP,
        activation=1,
        loop_id=LOOP,
        kind="loop",
        mode="parallel",
        collection_size=MAX_IN_FLIGHT,
        max_in_flight=slots,
        policy=FrameBounds().to_json(),
        engine="inline",
    )


def dispatched(*, slot: int, sequence: int = 0, index: int = 0) -> FrameDispatched:
    return FrameDispatched(
        frame_id=frame_id(stage_id=STAGE, index=index),
        stage_id=STAGE,
        step=STEP,
        loop_id=LOOP,
        attempt=1,
        slot=slot,
        frame_index=index,
        start=index,
        stop=index + 1,
        sequence=sequence,
        worker_id="ada",
        lease_seconds=120.0,
    )


def after(*facts: object) -> State:
    history = History().add(initialized(), StepEntered(step=STEP, activation=1), *facts)
    return fold_all(empty(EXECUTION), history.recorded)


def test_slots_are_counted_in_any_order_up_to_the_last_that_a_stage_may_have() -> None:
    last = MAX_IN_FLIGHT - 1

    state = after(
        opened(slots=MAX_IN_FLIGHT),
        dispatched(slot=last, index=0),
        dispatched(slot=1, index=1),
        dispatched(slot=last, sequence=1, index=2),
    )

    stage = state.execution.stages[STEP]
    assert [stage.sequence_of(slot) for slot in (0, 1, last)] == [0, 1, 2]
    assert sum(stage.sequences) == 3


@pytest.mark.parametrize("slot", [3, 10**9, 2**53 - 1, -1])
def test_a_slot_that_the_stage_does_not_have_is_refused_before_any_is_made(slot: int) -> None:
    with pytest.raises(Corrupt, match=f"a stage of 3 slots has no slot {slot}"):
        after(opened(slots=3), dispatched(slot=slot))


@pytest.mark.parametrize("slots", [MAX_IN_FLIGHT + 1, 2**53 - 1])
def test_a_stage_is_not_wider_than_any_that_was_ever_opened(slots: int) -> None:
    with pytest.raises(Corrupt, match=f"at most {MAX_IN_FLIGHT} slots, not {slots}"):
        after(opened(slots=slots))
