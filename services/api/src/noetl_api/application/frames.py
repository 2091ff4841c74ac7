"""Frames for workers that speak HTTP: claimed, kept and committed through the planner."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_core.errors import InvalidInput, LeaseLost, NotFound, Rejected, Unavailable
from noetl_core.ids import execution_of
from noetl_core.ports.commands import UNANSWERED, Variables, Worker
from noetl_core.ports.event_log import Scope
from noetl_core.ports.frames import CommittedRows, FrameCommit, FrameKey, Frames, GrantedFrame, StageSlot
from noetl_servicekit.callers import Caller, Role

from noetl_api.application.query_executions import QueryExecutions

_NOT_FOUND = "stage.not_found"
MAX_AT_ONCE = 100


class FrameRefused(Rejected):
    """The stage has no frame for this worker, or the frame does not count any more."""

    code = "frame.held"

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}", reason=reason)
        self.code = reason  # type: ignore[misc]  # an instance may be more precise than its class


class StageFrames:
    """Who may see an execution as a service may have its frames; whether a claim counts is for the planner to say."""

    def __init__(self, *, executions: QueryExecutions, planner: Frames | None) -> None:
        self._executions = executions
        self._planner = planner

    async def claim(
        self, caller: Caller, scope: Scope | None, stage_id: str, worker: Worker, *, count: int
    ) -> Sequence[GrantedFrame]:
        """As many frames as there are slots free, up to `count`; raises `FrameRefused` if there is none."""
        planner = self._planner_for(caller, worker)
        if not 1 <= count <= MAX_AT_ONCE:
            raise InvalidInput(f"from 1 to {MAX_AT_ONCE} frames can be claimed at once, not {count}")
        execution_id = await self._seen(caller, scope, stage_id, what="stage_id")
        slots = [StageSlot(execution_id=execution_id, stage_id=stage_id)] * count
        claims = await planner.claim_frames(worker, slots)
        frames = [claim.frame for claim in claims if claim.frame is not None]
        if frames:
            return frames
        refusal = claims[0].refusal
        if refusal == UNANSWERED:
            raise Unavailable("nobody plans this execution at the moment")
        if refusal == _NOT_FOUND:
            raise NotFound("stage", stage_id, code=_NOT_FOUND)
        raise FrameRefused(name=f"stage {stage_id}", reason=refusal)

    async def heartbeat(
        self, caller: Caller, scope: Scope | None, frame_id: str, worker: Worker, *, attempt: int
    ) -> None:
        """Keep a frame; raises `FrameRefused` if it does not count any more."""
        planner = self._planner_for(caller, worker)
        key = await self._key(caller, scope, frame_id, attempt)
        beats = await planner.heartbeat_frames(worker, [key])
        if beats.unanswered:
            raise Unavailable("nobody plans this execution at the moment")
        if beats.lost:
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
        variables: Variables,
        wants_next: bool,
    ) -> FrameCommit:
        """Take the outcomes of a frame; safe to repeat, refused with the winner if it does not count."""
        planner = self._planner_for(caller, worker)
        key = await self._key(caller, scope, frame_id, attempt)
        return await planner.commit_frame(worker, key, rows, wants_next=wants_next, variables=variables)

    def _planner_for(self, caller: Caller, worker: Worker) -> Frames:
        caller.require(Role.SERVICE)
        if not worker.worker_id:
            raise InvalidInput("a worker names its worker_id")
        if self._planner is None:
            raise Unavailable("this api knows no planner (NOETL_PLANNER_ADDRESS), so that it grants no frames")
        return self._planner

    async def _key(self, caller: Caller, scope: Scope | None, frame_id: str, attempt: int) -> FrameKey:
        execution_id = await self._seen(caller, scope, frame_id, what="frame_id")
        return FrameKey(execution_id=execution_id, frame_id=frame_id, attempt=attempt)

    async def _seen(self, caller: Caller, scope: Scope | None, work_id: str, *, what: str) -> int:
        execution_id = execution_of(work_id, what=what)
        await self._executions.get(caller, scope, execution_id)  # raises NotFound unless the caller sees it
        return execution_id
