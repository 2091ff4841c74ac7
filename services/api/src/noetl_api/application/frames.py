"""Frames for workers that speak HTTP: claimed, kept and ended through the planner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from noetl_core.errors import (
    AlreadyTerminal,
    FrameAlreadyTerminal,
    InvalidInput,
    LeaseLost,
    NotFound,
    Rejected,
    Unavailable,
)
from noetl_core.ids import execution_of
from noetl_core.payloads import PayloadRef
from noetl_core.placement import TOO_FAR
from noetl_core.ports.commands import UNANSWERED, Variables, Worker
from noetl_core.ports.event_finder import FrameEvents
from noetl_core.ports.event_log import Scope
from noetl_core.ports.frames import ANY_SLOT, CommittedRows, FrameCommit, FrameKey, Frames, GrantedFrame, StageSlot
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, PayloadStore
from noetl_core.ports.projections import ExecutionView
from noetl_servicekit.callers import Caller, Role

from noetl_api.application.query_executions import QueryExecutions

_NOT_FOUND = "stage.not_found"
MAX_AT_ONCE = 100
ENDS = ("frame.committed", "frame.failed", "frame.abandoned")


class FrameRefused(Rejected):
    """The stage has no frame for this worker, or the frame does not count any more."""

    code = "frame.held"

    def __init__(self, *, name: str, reason: str, **facts: str) -> None:
        super().__init__(f"{name}: {reason}", reason=reason, **facts)
        self.code = reason  # type: ignore[misc]  # an instance may be more precise than its class


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a worker wants of the frames that it claims."""

    count: int = 1
    claim_id: str = ""
    """How the worker calls the claim, if it is to be safe to repeat without a slot."""
    slot: int = ANY_SLOT
    lease_seconds: float = 0
    max_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedFrame:
    """A frame with what a worker that is no NoETL worker cannot know."""

    frame: GrantedFrame
    lease_seconds: float
    """For how long the worker has it without a heartbeat, which is less than was granted if the claim is repeated."""
    lease_until: datetime
    """By this replica's clock, counted from before the claim: never later than it is."""
    dsl_ref: str
    """Which step of which playbook it runs."""


class StageFrames:
    """Who may see an execution as a service may have its frames; whether a claim counts is for the planner to say."""

    def __init__(
        self,
        *,
        executions: QueryExecutions,
        planner: Frames | None,
        events: FrameEvents,
        payloads: PayloadStore,
        clock: Callable[[], datetime],
    ) -> None:
        self._executions = executions
        self._planner = planner
        self._events = events
        self._payloads = payloads
        self._clock = clock

    async def claim(
        self, caller: Caller, scope: Scope | None, stage_id: str, worker: Worker, wish: Wish
    ) -> Sequence[ClaimedFrame]:
        """As many frames as there are slots free, up to `count`; raises `FrameRefused` if there is none."""
        planner = self._planner_for(caller, worker)
        if not 1 <= wish.count <= MAX_AT_ONCE:
            raise InvalidInput(f"from 1 to {MAX_AT_ONCE} frames can be claimed at once, not {wish.count}")
        if wish.count > 1 and wish.slot != ANY_SLOT:
            raise InvalidInput("a slot has one frame at a time: claim one, or name no slot")
        view = await self._seen(caller, scope, stage_id, what="stage_id")
        slots = [
            StageSlot(
                execution_id=view.execution_id,
                stage_id=stage_id,
                slot=wish.slot,
                lease_seconds=wish.lease_seconds,
                max_rows=wish.max_rows,
                claim_id=f"{wish.claim_id}/{number}" if wish.claim_id else "",
            )
            for number in range(wish.count)
        ]
        asked = self._clock()
        claims = await planner.claim_frames(worker, slots)
        frames = [claim.frame for claim in claims if claim.frame is not None]
        if frames:
            return [_claimed(frame, view, asked, wish.lease_seconds) for frame in frames]
        refusal = claims[0].refusal
        if refusal == UNANSWERED:
            raise Unavailable("nobody plans this execution at the moment")
        if refusal == _NOT_FOUND:
            raise NotFound("stage", stage_id, code=_NOT_FOUND)
        facts = {"max_distance": worker.locality.max_distance.value} if refusal == TOO_FAR else {}
        raise FrameRefused(name=f"stage {stage_id}", reason=refusal, **facts)

    async def start(
        self,
        caller: Caller,
        scope: Scope | None,
        frame_id: str,
        worker: Worker,
        *,
        attempt: int,
        rows: PayloadRef,
        row_count: int,
    ) -> int:
        """Take the rows that a frame has claimed through a cursor; returns the index of the first. Safe to repeat.

        From here on they are the frame's in every attempt, so they are looked for first: what is told and not stored
        would be claimed and lost. Refused as `commit` is, and with `FrameHasRows` if others were told before.
        """
        planner = self._planner_for(caller, worker)
        key, owner = await self._key(caller, scope, frame_id, attempt)
        await self._check_stored(rows, key, owner, "the rows")
        async with self._telling_terminal(owner, key):
            return await planner.start_frame(worker, key, rows, row_count=row_count)

    async def heartbeat(
        self, caller: Caller, scope: Scope | None, frame_id: str, worker: Worker, *, attempt: int, lease_seconds: float
    ) -> None:
        """Keep a frame; raises `FrameAlreadyTerminal` if it has ended, and `FrameRefused` if another one has it."""
        planner = self._planner_for(caller, worker)
        key, owner = await self._key(caller, scope, frame_id, attempt)
        beats = await planner.heartbeat_frames(worker, [key], lease_seconds=lease_seconds)
        if beats.unanswered:
            raise Unavailable("nobody plans this execution at the moment")
        if beats.lost:
            ended = await self._end_of(owner, key)
            if ended is not None:
                name, event_id = ended
                raise _terminal(key, winner=name, event_id=event_id)
            raise FrameRefused(name=f"frame {frame_id}", reason=LeaseLost.code)

    async def commit(
        self,
        caller: Caller,
        scope: Scope | None,
        frame_id: str,
        worker: Worker,
        *,
        attempt: int,
        rows: CommittedRows,
        output: PayloadRef | None,
        variables: Variables,
        wants_next: bool,
    ) -> tuple[FrameCommit, ClaimedFrame | None]:
        """Take the outcomes of a frame; safe to repeat, refused with the winner if it does not count.

        Others have stored them: no event is to point at bytes that are not there.
        """
        planner = self._planner_for(caller, worker)
        key, owner = await self._key(caller, scope, frame_id, attempt)
        if output is not None:
            await self._check_stored(output, key, owner, "the output")
        asked = self._clock()
        async with self._telling_terminal(owner, key):
            done = await planner.commit_frame(worker, key, rows, wants_next=wants_next, variables=variables)
        return done, await self._next(caller, scope, done, asked)

    async def fail(
        self,
        caller: Caller,
        scope: Scope | None,
        frame_id: str,
        worker: Worker,
        *,
        attempt: int,
        error: Mapping[str, Any],
        wants_next: bool,
    ) -> tuple[FrameCommit, ClaimedFrame | None]:
        """Take the failure of a whole frame; as `commit`."""
        planner = self._planner_for(caller, worker)
        key, owner = await self._key(caller, scope, frame_id, attempt)
        result = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": dict(error)}}
        asked, retryable = self._clock(), bool(error.get("retryable"))
        async with self._telling_terminal(owner, key):
            done = await planner.fail_frame(worker, key, result, retryable=retryable, wants_next=wants_next)
        return done, await self._next(caller, scope, done, asked)

    async def _next(
        self, caller: Caller, scope: Scope | None, done: FrameCommit, asked: datetime
    ) -> ClaimedFrame | None:
        if done.next is None:
            return None
        view = await self._executions.get(caller, scope, done.next.key.execution_id)
        return _claimed(done.next, view, asked)

    async def _check_stored(self, ref: PayloadRef, key: FrameKey, owner: Scope, what: str) -> None:
        """What nobody refers to may be collected, so that it is missing may also mean that the frame has ended."""
        if (ref.tenant_id, ref.organization_id) != (owner.tenant_id, owner.organization_id):
            raise InvalidInput(f"{what} of frame {key.frame_id}: not stored for the organization of its execution")
        if await self._payloads.exists(ref):
            return
        ended = await self._end_of(owner, key)
        if ended is not None:
            raise _terminal(key, winner=ended[0], event_id=ended[1])
        raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE)

    def _planner_for(self, caller: Caller, worker: Worker) -> Frames:
        caller.require(Role.SERVICE)
        if not worker.worker_id:
            raise InvalidInput("a worker names its worker_id")
        if self._planner is None:
            raise Unavailable("this api knows no planner (NOETL_PLANNER_ADDRESS), so that it grants no frames")
        return self._planner

    async def _key(self, caller: Caller, scope: Scope | None, frame_id: str, attempt: int) -> tuple[FrameKey, Scope]:
        view = await self._seen(caller, scope, frame_id, what="frame_id")
        owner = Scope(tenant_id=view.tenant_id, organization_id=view.organization_id)
        return FrameKey(execution_id=view.execution_id, frame_id=frame_id, attempt=attempt), owner

    async def _seen(self, caller: Caller, scope: Scope | None, work_id: str, *, what: str) -> ExecutionView:
        """The execution; raises `NotFound` unless the caller sees it."""
        return await self._executions.get(caller, scope, execution_of(work_id, what=what))

    @asynccontextmanager
    async def _telling_terminal(self, owner: Scope, key: FrameKey) -> AsyncIterator[None]:
        """R071: whoever comes too late is told which event ended the frame, also when its execution is over."""
        try:
            yield
        except (FrameAlreadyTerminal, AlreadyTerminal) as exc:
            ended = await self._end_of(owner, key)
            if ended is None and isinstance(exc, AlreadyTerminal):
                raise
            winner, event_id = ended if ended is not None else (exc.facts.get("winner", ""), "")
            raise _terminal(key, winner=winner, event_id=event_id) from exc

    async def _end_of(self, owner: Scope, key: FrameKey) -> tuple[str, str] | None:
        """Type and id of the event that ended the last attempt at a frame; None if it has not ended."""
        last = await self._events.last_of_frame(owner, key.execution_id, key.frame_id)
        envelope = last.envelope() if last is not None else None
        if envelope is None or envelope.event_type not in ENDS or envelope.meta.get("outcome") == "retry":
            return None
        return envelope.event_type, str(envelope.event_id)


def _terminal(key: FrameKey, *, winner: str, event_id: str) -> FrameAlreadyTerminal:
    facts = {"error": "frame_already_terminal", **({"terminal_event_id": event_id} if event_id else {})}
    return FrameAlreadyTerminal(frame_id=key.frame_id, attempt=key.attempt, winner=winner, **facts)


def _claimed(frame: GrantedFrame, view: ExecutionView, asked: datetime, wanted_seconds: float = 0) -> ClaimedFrame:
    lease = frame.lease_left_seconds
    if lease is None:  # a planner of before does not tell it
        lease = wanted_seconds or frame.rows.bounds.lease_seconds
    return ClaimedFrame(
        frame=frame,
        lease_seconds=lease,
        lease_until=asked + timedelta(seconds=lease),
        dsl_ref=f"{view.path}@{view.version}#{frame.step.step}",
    )
