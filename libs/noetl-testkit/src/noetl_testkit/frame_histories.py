"""Histories with stages, drawn at random: frames are dispatched, lost, split, left in part and committed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from noetl_core.executions.events import StepEntered, StepExited
from noetl_core.fold import State, empty, fold
from noetl_core.ids import epoch_id, frame_id, stage_id
from noetl_core.loops.events import LoopDone
from noetl_core.payloads import refer_to
from noetl_core.recorded import record
from noetl_core.stages.events import (
    FrameAbandoned,
    FrameCommitted,
    FrameDispatched,
    FrameFailed,
    FrameHeartbeat,
    FrameStarted,
    StageOpened,
)
from noetl_core.stages.fold import close_stage
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.state import Frame, FrameOutcome, Stage
from noetl_core.timestamps import format_time

from noetl_testkit.histories import EXECUTION, NOON, History, initialized

STEP = "each"
CLAIMED_ROWS = refer_to(b"[]", tenant_id="default", organization_id="default", media_type="application/json")


@dataclass(slots=True)
class _StageRun:
    """One activation after another of a step whose loop runs in frames, or whose frames claim through a cursor."""

    history: History
    choose: random.Random
    state: State = field(default_factory=lambda: empty(EXECUTION))

    @property
    def stage(self) -> Stage:
        return self.state.execution.stages[STEP]

    def add(self, *contents: object) -> None:
        seen = len(self.history.stored)
        self.history.add(*contents)
        for stored in self.history.stored[seen:]:
            self.state = fold(self.state, record(stored))

    def open(self, activation: int) -> None:
        execution_id = self.history.execution_id
        self.add(
            StepEntered(step=STEP, activation=activation, consumes=("",)),
            StageOpened(
                stage_id=stage_id(execution_id=execution_id, step=STEP, activation=activation),
                step=STEP,
                activation=activation,
                loop_id=epoch_id(execution_id=execution_id, step=STEP, attempt=activation),
                kind="loop",
                mode=self.choose.choice(("parallel", "cursor")),
                collection_size=self.choose.randrange(12),
                max_in_flight=3,
                policy=FrameBounds(max_rows=3).to_json(),
                engine="inline",
            ),
        )

    def go_on(self) -> None:
        moves = [self._dispatch] * 2
        if self.stage.held:
            moves += [self._start, self._beat, self._commit, self._commit, self._fail, self._lose]
        self.choose.choice(moves)()

    def close(self) -> None:
        loop, stage = self.state.execution.loops[STEP], self.stage
        self.add(
            close_stage(stage, status="partial"),
            LoopDone(
                loop_id=stage.loop_id,
                step=STEP,
                activation=stage.activation,
                collection_size=loop.total,
                status="partial",
                success=loop.success,
                failed=loop.failed,
            ),
            StepExited(step=STEP, activation=stage.activation, status="ok"),
        )

    def _dispatch(self) -> None:
        stage = self.stage
        slot = next(iter(stage.free_slots()), None)
        if slot is None:
            return
        if stage.waiting:
            frame = stage.waiting[0]
            index, start, stop, attempt = frame.index, frame.start, frame.stop, frame.attempt + 1
        else:
            index, start, attempt = stage.dispatched, stage.next_row, 1
            stop = start if stage.is_cursor else min(start + 3, stage.total)
            if stop == start and not stage.is_cursor:
                return
        self.add(
            FrameDispatched(
                frame_id=frame_id(stage_id=stage.stage_id, index=index),
                stage_id=stage.stage_id,
                step=STEP,
                loop_id=stage.loop_id,
                attempt=attempt,
                slot=slot,
                frame_index=index,
                start=start,
                stop=stop,
                sequence=stage.sequence_of(slot),
                worker_id="ada",
                lease_seconds=30.0,
                payload_ref=stage.waiting[0].claimed if stage.waiting else None,
                rows_at=stage.waiting[0].claimed_at if stage.waiting else None,
            )
        )

    def _start(self) -> None:
        frame = self._one()
        if not self.stage.is_cursor or frame.claimed:
            self.add(FrameStarted(**_of(self.stage, frame), worker_id="ada"))
            return
        first = self.stage.next_row
        rows: dict[str, Any] = {
            "start": first,
            "stop": first + self.choose.randrange(1, 4),
            "payload_ref": CLAIMED_ROWS,
        }
        self.add(FrameStarted(**_of(self.stage, frame), worker_id="ada", **rows))

    def _beat(self) -> None:
        self.add(FrameHeartbeat(**_of(self.stage, self._one()), worker_id="ada", lease_seconds=30.0))

    def _commit(self) -> None:
        frame = self._one()
        stop = self.choose.randint(min(frame.start + 1, frame.stop), frame.stop)
        failed = self.choose.randint(0, stop - frame.start)
        reference = CLAIMED_ROWS.to_json()
        self.add(
            FrameCommitted(
                **_of(self.stage, frame),
                worker_id="ada",
                frame_index=frame.index,
                start=frame.start,
                stop=stop,
                success=stop - frame.start - failed,
                failed=failed,
                first_error={"index": frame.start, "code": "BAD"} if failed else None,
                result={"status": "ok", "reference": reference, "parent_ref": None, "context": {}},
            )
        )

    def _fail(self) -> None:
        frame = self._one()
        result = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": {"code": "BAD"}}}
        self.add(
            FrameFailed(
                **_of(self.stage, frame),
                worker_id="ada",
                frame_index=frame.index,
                start=frame.start,
                stop=frame.stop,
                outcome=self._outcome(frame),
                result=result,
            )
        )

    def _lose(self) -> None:
        frame = self._one()
        self.add(
            FrameAbandoned(
                **_of(self.stage, frame),
                frame_index=frame.index,
                start=frame.start,
                stop=frame.stop,
                outcome=self._outcome(frame),
                previous_owner="ada",
                reclaimer="urn:noetl:reaper:test",
                prior_lease_until=format_time(NOON),
                previous_attempt=frame.attempt,
                max_attempts=3,
            )
        )

    def _outcome(self, frame: Frame) -> str:
        fates = [FrameOutcome.RETRY, FrameOutcome.FINAL]
        return self.choose.choice([*fates, FrameOutcome.BISECT] if frame.rows > 1 else fates)

    def _one(self) -> Frame:
        return self.choose.choice(self.stage.held)


def _of(stage: Stage, frame: Frame) -> dict[str, Any]:
    return {
        "frame_id": frame.frame_id,
        "stage_id": stage.stage_id,
        "step": STEP,
        "loop_id": stage.loop_id,
        "attempt": frame.attempt,
        "slot": frame.slot,
    }


def drawn_frame_history(
    choose: random.Random, *, moves: int = 20, activations: int = 2, execution_id: int = EXECUTION
) -> History:
    """A history whose step runs its loop in frames, once or more often; the last stage may be left open."""
    history = History(execution_id)
    run = _StageRun(history, choose, empty(execution_id))
    run.add(initialized())
    for activation in range(1, activations + 1):
        run.open(activation)
        for _ in range(moves):
            run.go_on()
        if activation < activations or choose.random() < 0.7:
            run.close()
    return history
