"""What workers ask about frames, as part of a turn: the append is the claim, and a commit brings the next frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from noetl_core.catalog import to_draft
from noetl_core.envelope import Draft, check_result_shape
from noetl_core.errors import (
    AlreadyTerminal,
    FrameAlreadyTerminal,
    FrameHasRows,
    InvalidInput,
    LeaseLost,
    NotFound,
    VersionConflict,
)
from noetl_core.executions.events import CtxUpdated
from noetl_core.executions.item_keys import told_key
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.ids import stage_of_frame
from noetl_core.placement import TOO_FAR
from noetl_core.ports.commands import Worker
from noetl_core.ports.frames import ANY_SLOT, CommittedRows, FrameClaim, FrameCommit, FrameKey, GrantedFrame, StageSlot
from noetl_core.stages.dispatch import may_dispatch, next_frame, outcome_of, stage_of
from noetl_core.stages.events import FrameCommitted, FrameDispatched, FrameFailed, FrameHeartbeat, FrameStarted
from noetl_core.stages.fanout import enqueued
from noetl_core.stages.state import EndedFrame, Frame, Stage, attempt_key
from noetl_core.timestamps import format_time
from noetl_core.values import replace

from noetl_planner.application.asks import (
    AbandonFrame,
    BeatFrame,
    ClaimFrame,
    EndFrame,
    FrameAsk,
    LookAtStage,
    StartFrame,
)
from noetl_planner.application.frame_abandoning import abandonment
from noetl_planner.application.frame_grants import grant_frame
from noetl_planner.application.grants import made_at
from noetl_planner.application.turn_parts import Turn, TurnRules, constant


class FrameTurns:
    """Plans what is asked about frames; holds no state of its own."""

    def __init__(
        self,
        plan: Plan,
        rules: TurnRules,
        *,
        add: Callable[[Turn, Draft], None],
        decide_last: Callable[[Turn], None],
    ) -> None:
        self._plan = plan
        self._rules = rules
        self._add = add
        self._decide_last = decide_last

    def answer(self, turn: Turn, ask: FrameAsk) -> None:
        """Add what is asked to the turn; raises what refuses it."""
        match ask:
            case ClaimFrame():
                turn.answers.append((ask, constant(self._claim(turn, ask))))
            case StartFrame():
                turn.answers.append((ask, constant(self._start(turn, ask))))
            case EndFrame():
                turn.answers.append((ask, constant(self._end(turn, ask))))
            case BeatFrame():
                turn.answers.append((ask, constant(self._beat(turn, ask))))
            case AbandonFrame():
                turn.answers.append((ask, constant(self._abandon(turn, ask))))
            case LookAtStage():
                turn.answers.append((ask, constant(_holders(turn.state, ask.stage_id))))
            case _:
                assert_never(ask)

    def end_alone(self, turn: Turn, ask: EndFrame) -> None:
        """The end of a frame without what follows from it."""
        stage, frame = _held_frame(turn.state, ask.key, ask.worker)
        self._close(turn, stage, frame, ask)

    def _claim(self, turn: Turn, ask: ClaimFrame) -> FrameClaim:
        execution, wanted = turn.state.execution, ask.slot
        stage = stage_of(execution, wanted.stage_id)
        if execution.status.is_final:
            return FrameClaim(slot=wanted, refusal=AlreadyTerminal.code)
        if stage is None or not stage.is_open:
            return FrameClaim(slot=wanted, refusal="stage.closed" if stage else "stage.not_found")
        if wanted.slot >= stage.max_in_flight:
            return FrameClaim(slot=wanted, refusal="stage.no_such_slot")
        held = _held_for(stage, wanted, ask.worker)
        if held is not None:
            if held.worker_id != ask.worker.worker_id:
                return FrameClaim(slot=wanted, refusal="frame.held")
            return FrameClaim(slot=wanted, frame=grant_frame(turn.state, stage, held, now=turn.now))
        if not may_dispatch(execution, self._plan, stage):
            paused = execution.status is ExecutionStatus.PAUSED
            return FrameClaim(slot=wanted, refusal="execution.paused" if paused else "stage.drained")
        free = (slot for slot in stage.free_slots() if stage.may_take(slot))
        slot = wanted.slot if wanted.slot != ANY_SLOT else next(free, None)
        if slot is None:
            return FrameClaim(slot=wanted, refusal="stage.full")
        if not stage.may_take(slot):
            return FrameClaim(slot=wanted, refusal="stage.drained")
        named = replace(wanted, slot=slot)
        granted = self._dispatch(turn, stage, named, ask.worker)
        return FrameClaim(slot=named, frame=granted, refusal="" if granted else TOO_FAR)

    def _dispatch(
        self, turn: Turn, stage: Stage, wanted: StageSlot, worker: Worker, *, after: Frame | None = None, cause: int = 0
    ) -> GrantedFrame | None:
        """The next frame of a slot; `cause` is the commit that it is handed over with. None if it is too far away."""
        slot = wanted.slot
        dispatched = next_frame(
            stage,
            slot=slot,
            worker=worker,
            source=made_at(turn.state.execution, stage.step),
            after=after,
            lease_seconds=wanted.lease_seconds,
            max_rows=wanted.max_rows,
            claim_id=wanted.claim_id,
        )
        if dispatched is None:
            return None
        meta = {"decided_through": cause} if cause else {}
        key = f"frame/{stage.stage_id}/{slot}/{dispatched.sequence}"
        trace = turn.state.execution.trace
        policy = self._plan.playbook.steps[stage.step].loop
        if policy is not None and policy.tells_shards:
            key_of_item = told_key(
                turn.state.execution, self._plan, step=stage.step, index=dispatched.start, now=format_time(turn.now)
            )
            shard = enqueued(stage, dispatched, iter_key=key_of_item)
            named = attempt_key(dispatched.frame_id, dispatched.attempt)
            self._add(turn, to_draft(shard, idempotency_key=f"{named}/enqueued", meta=dict(meta), trace=trace))
        self._add(turn, to_draft(dispatched, idempotency_key=key, meta=dict(meta), trace=trace))
        if not stage.is_cursor or dispatched.payload_ref is not None:
            started = FrameStarted(worker_id=worker.worker_id, **_of(dispatched))
            attempt = attempt_key(dispatched.frame_id, dispatched.attempt)
            self._add(turn, to_draft(started, idempotency_key=f"{attempt}/start", meta=dict(meta), trace=trace))
        now = turn.state.execution.stages[stage.step]
        return grant_frame(turn.state, now, now.frames[dispatched.frame_id], now=turn.now)

    def _start(self, turn: Turn, ask: StartFrame) -> int:
        """Rows that a worker has claimed are those of its frame, before anybody else can have them."""
        stage, frame = _held_frame(turn.state, ask.key, ask.worker)
        if frame.claimed is not None:
            if (frame.claimed, frame.rows) != (ask.rows, ask.row_count):
                raise FrameHasRows(frame.frame_id)
            return frame.start
        if not stage.is_cursor or ask.row_count < 1:
            raise InvalidInput(f"frame {frame.frame_id} cannot claim these rows")
        started = FrameStarted(
            frame_id=frame.frame_id,
            stage_id=stage.stage_id,
            step=stage.step,
            loop_id=stage.loop_id,
            attempt=frame.attempt,
            slot=frame.slot,
            worker_id=ask.worker.worker_id,
            start=stage.next_row,
            stop=stage.next_row + ask.row_count,
            payload_ref=ask.rows,
        )
        trace = turn.state.execution.trace
        self._add(turn, to_draft(started, idempotency_key=f"{frame.key}/start", trace=trace))
        return stage.next_row

    def _end(self, turn: Turn, ask: EndFrame) -> FrameCommit:
        known = self._answered_before(turn, ask)
        if known is not None:
            return known
        stage, frame = _held_frame(turn.state, ask.key, ask.worker)
        self._close(turn, stage, frame, ask)
        version = turn.state.stream_version
        self._decide_last(turn)
        execution = turn.state.execution
        stage = execution.stages[stage.step]
        granted = None
        if ask.wants_next and may_dispatch(execution, self._plan, stage):
            slot = StageSlot(execution_id=execution.execution_id, stage_id=stage.stage_id, slot=frame.slot)
            granted = self._dispatch(turn, stage, slot, ask.worker, after=frame, cause=version)
        return FrameCommit(stream_version=version, next=granted)

    def _answered_before(self, turn: Turn, ask: EndFrame) -> FrameCommit | None:
        """The worker did not hear the first answer: it gets the same one, with the frame that came with it."""
        state = turn.state
        stage = stage_of(state.execution, stage_of_frame(ask.key.frame_id))
        if stage is None:
            return None
        ended = _ended(stage, ask.key)
        key = ended.key if ended and not ask.key.attempt else attempt_key(ask.key.frame_id, ask.key.attempt)
        handed = next((frame for frame in stage.held if frame.after == key), None)
        if handed is not None and handed.worker_id == ask.worker.worker_id:
            again = grant_frame(state, stage, handed, now=turn.now)
            return FrameCommit(stream_version=state.stream_version, next=again)
        wanted = "frame.committed" if ask.rows is not None else "frame.failed"
        if ended is None or (ended.worker_id, ended.ended_by) != (ask.worker.worker_id, wanted):
            return None
        return FrameCommit(stream_version=ended.stream_version)

    def _close(self, turn: Turn, stage: Stage, frame: Frame, ask: EndFrame) -> None:
        trace = turn.state.execution.trace
        if ask.variables:
            refs = {name: ref.to_json() for name, ref in ask.variables.refs.items()}
            values = dict(ask.variables.values)
            update = CtxUpdated(step=stage.step, values=values, refs=refs or None, loop_id=stage.loop_id)
            self._add(turn, to_draft(update, idempotency_key=f"{frame.key}/set", trace=trace))
        ended = self._committed(stage, frame, ask, ask.rows) if ask.rows else _failed(stage, frame, ask)
        self._add(turn, to_draft(ended, idempotency_key=f"{frame.key}/end", trace=trace))

    def _committed(self, stage: Stage, frame: Frame, ask: EndFrame, rows: CommittedRows) -> FrameCommitted:
        check_result_shape(rows.result)
        found_nothing = stage.is_cursor and frame.claimed is None and rows.stop == frame.start
        if stage.is_cursor and frame.claimed is None and not found_nothing:
            raise InvalidInput(f"frame {frame.frame_id} has no rows yet: it is started with those that it has claimed")
        if (
            not (found_nothing or frame.start < rows.stop <= frame.stop)
            or rows.success + rows.failed != rows.stop - frame.start
        ):
            raise InvalidInput(f"frame {frame.frame_id} has rows {frame.start} to {frame.stop}, not these outcomes")
        return FrameCommitted(
            **_ends(stage, frame),
            worker_id=ask.worker.worker_id,
            stop=rows.stop,
            success=rows.success,
            failed=rows.failed,
            breaks=rows.breaks,
            first_error=rows.first_error,
            result=dict(rows.result),
            logs=ask.logs.to_json() if ask.logs else None,
            metrics=dict(rows.metrics) if rows.metrics else None,
        )

    def _beat(self, turn: Turn, ask: BeatFrame) -> bool:
        stage = stage_of(turn.state.execution, stage_of_frame(ask.key.frame_id))
        frame = stage.frames.get(ask.key.frame_id) if stage else None
        is_over = turn.state.execution.status.is_final
        if is_over or stage is None or frame is None or not _is_held(frame, ask.key, ask.worker):
            return False
        beat = FrameHeartbeat(
            frame_id=frame.frame_id,
            stage_id=stage.stage_id,
            step=stage.step,
            loop_id=stage.loop_id,
            attempt=frame.attempt,
            slot=frame.slot,
            worker_id=ask.worker.worker_id,
            lease_seconds=ask.lease_seconds or stage.bounds.lease_seconds,
            progress=ask.progress,
        )
        key = f"{frame.key}/heartbeat/{frame.aggregate_version}"
        self._add(turn, to_draft(beat, idempotency_key=key, trace=turn.state.execution.trace))
        return True

    def _abandon(self, turn: Turn, ask: AbandonFrame) -> int:
        if turn.state.execution.status.is_final:
            raise AlreadyTerminal(str(turn.state.execution.execution_id))
        stage = stage_of(turn.state.execution, stage_of_frame(ask.key.frame_id))
        frame = stage.frames.get(ask.key.frame_id) if stage else None
        if stage is None or frame is None:
            raise NotFound("frame", ask.key.frame_id, code="frame.not_found")
        if not frame.is_held or frame.aggregate_version != ask.expected_aggregate_version:
            raise VersionConflict(
                subject=f"frame {frame.frame_id}",
                expected=ask.expected_aggregate_version,
                current=frame.aggregate_version,
            )
        self._add(turn, abandonment(turn.state, stage, frame, not_before=ask.lease_until, reclaimer=ask.reclaimer))
        version = turn.state.stream_version
        self._decide_last(turn)
        return version


def _holders(state: State, stage_id: str) -> dict[int, str]:
    """Nobody, of a stage that is over or not known."""
    stage = stage_of(state.execution, stage_id)
    if state.execution.status.is_final or stage is None or not stage.is_open:
        return {}
    return {frame.slot: frame.worker_id for frame in stage.held}


def _held_for(stage: Stage, wanted: StageSlot, worker: Worker) -> Frame | None:
    """The frame that the slot has; of whichever is free, that which the worker has by the claim that it repeats."""
    if wanted.slot != ANY_SLOT:
        return next((frame for frame in stage.held if frame.slot == wanted.slot), None)
    if not wanted.claim_id:
        return None
    claim = (worker.worker_id, wanted.claim_id)
    return next((frame for frame in stage.held if (frame.worker_id, frame.claim_id) == claim), None)


def _held_frame(state: State, key: FrameKey, worker: Worker) -> tuple[Stage, Frame]:
    """The frame that this worker holds; raises `LeaseLost` if a later attempt lives, else what says how it ended."""
    if state.execution.status.is_final:
        raise AlreadyTerminal(str(state.execution.execution_id))
    stage = stage_of(state.execution, stage_of_frame(key.frame_id))
    frame = stage.frames.get(key.frame_id) if stage else None
    if stage is not None and frame is not None and _is_held(frame, key, worker):
        return stage, frame
    if frame is not None:
        named = attempt_key(key.frame_id, key.attempt)
        raise LeaseLost(command_id=named, worker=worker.worker_id, holder=frame.worker_id or None)
    ended = _ended(stage, key)
    winner = f"{ended.ended_by} at version {ended.stream_version}" if ended else "the end of its stage"
    raise FrameAlreadyTerminal(frame_id=key.frame_id, attempt=key.attempt, winner=winner)


def _is_held(frame: Frame, key: FrameKey, worker: Worker) -> bool:
    """Whether the attempt that is named is this worker's; if none is, the one that it has."""
    return frame.held_by(worker.worker_id, key.attempt or frame.attempt)


def _ended(stage: Stage | None, key: FrameKey) -> EndedFrame | None:
    """The end of the attempt that is named; if none is, the last end of the frame."""
    if stage is None or key.attempt:
        return stage.find_ended(attempt_key(key.frame_id, key.attempt)) if stage else None
    return next((one for one in reversed(stage.ended) if one.key.rpartition("/")[0] == key.frame_id), None)


def _of(dispatched: FrameDispatched) -> dict[str, Any]:
    return {
        "frame_id": dispatched.frame_id,
        "stage_id": dispatched.stage_id,
        "step": dispatched.step,
        "loop_id": dispatched.loop_id,
        "attempt": dispatched.attempt,
        "slot": dispatched.slot,
    }


def _ends(stage: Stage, frame: Frame) -> dict[str, Any]:
    return {
        "frame_id": frame.frame_id,
        "stage_id": stage.stage_id,
        "step": stage.step,
        "loop_id": stage.loop_id,
        "attempt": frame.attempt,
        "slot": frame.slot,
        "frame_index": frame.index,
        "start": frame.start,
    }


def _failed(stage: Stage, frame: Frame, ask: EndFrame) -> FrameFailed:
    check_result_shape(ask.failure)
    return FrameFailed(
        **_ends(stage, frame),
        worker_id=ask.worker.worker_id,
        stop=frame.stop,
        outcome=outcome_of(stage, frame, retryable=ask.retryable).value,
        result=dict(ask.failure),
        logs=ask.logs.to_json() if ask.logs else None,
    )
