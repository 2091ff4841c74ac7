"""Frames over HTTP, for workers that are no NoETL worker."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from noetl_core.ports.commands import Variables, Worker
from noetl_core.ports.frames import CommittedRows, GrantedFrame
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.entrypoints.http.commands import GrantedOut
from noetl_api.entrypoints.http.dependencies import CallerOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api", tags=["frames"])

StageId = Annotated[str, Path(description="Id of the stage, as `stage.opened` tells it.")]
FrameId = Annotated[str, Path(description="Id of the frame, as a claim tells it.")]


class WorkerBody(BaseModel):
    """Who asks."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str = Field(min_length=1, max_length=255)
    pool: str = "default"

    @property
    def worker(self) -> Worker:
        return Worker(worker_id=self.worker_id, pool=self.pool)


class FrameClaimBody(WorkerBody):
    """How many frames are wanted."""

    requested_count: int = Field(default=1, ge=1, le=100)


class FrameBody(WorkerBody):
    """Which attempt at the frame it is about."""

    attempt: int = Field(ge=1)


class CursorIn(BaseModel):
    """Where the rows of the frame stand; what a claim has told besides is passed over."""

    model_config = ConfigDict(extra="ignore")

    start: int = Field(ge=0)


class FrameCommitBody(FrameBody):
    """What became of the rows of a frame."""

    cursor: CursorIn = Field(description="As the claim has told it.")
    output_ref: dict[str, Any] = Field(description="Where the list of outcomes is stored: `{uri, sha256, ...}`.")
    row_count: int = Field(ge=1, description="Rows that have an outcome; the others go to another frame.")
    failed: int = Field(default=0, ge=0, description="How many of them failed.")
    first_error: dict[str, Any] | None = None
    variables: dict[str, Any] = Field(default_factory=dict, description="Variables of the execution that were set.")
    wants_next: bool = Field(default=False, description="Whether the slot's next frame is to be claimed at once.")

    def rows(self) -> CommittedRows:
        result = {"status": "ok", "reference": self.output_ref, "parent_ref": None, "context": {}}
        return CommittedRows(
            result=result,
            stop=self.cursor.start + self.row_count,
            success=self.row_count - self.failed,
            failed=self.failed,
            first_error=self.first_error,
        )


class FrameOut(BaseModel):
    """Everything that is needed to run a frame."""

    frame_id: str
    stage_id: str
    attempt: int
    cursor: dict[str, Any] = Field(description="`{start, stop, total, worker_slot_id, frame_index, claims}`.")
    rows: list[Any] | None = Field(description="The rows; null if they are stored, or still to be claimed.")
    collection: dict[str, Any] | None = Field(description="Where they are stored, with the row with which it begins.")
    lease_seconds: float
    frame_policy: dict[str, Any]
    step: GrantedOut

    @classmethod
    def of(cls, frame: GrantedFrame) -> FrameOut:
        rows = frame.rows
        stored = {**rows.collection.to_json(), "begins_at": rows.collection_at} if rows.collection else None
        return cls(
            frame_id=frame.key.frame_id,
            stage_id=rows.stage_id,
            attempt=frame.key.attempt,
            cursor={
                "start": rows.start,
                "stop": rows.stop,
                "total": rows.total,
                "worker_slot_id": rows.slot,
                "frame_index": rows.index,
                "claims": rows.claims,
            },
            rows=None if rows.values is None else list(rows.values),
            collection=stored,
            lease_seconds=rows.bounds.lease_seconds,
            frame_policy=rows.bounds.to_json(),
            step=GrantedOut.of(frame.step),
        )


class FramesOut(BaseModel):
    """Frames that were claimed."""

    frames: list[FrameOut]


class FrameHeartbeatOut(BaseModel):
    """The frame is good for another `lease_seconds`."""

    ok: bool = True


class FrameCommitOut(BaseModel):
    """Where it was recorded, and what the worker is to do next."""

    ok: bool = True
    stream_version: int
    next_action: str = Field(description="`run` the next frame, or `stop`: the slot has none for this worker.")
    next: FrameOut | None


@router.post("/stages/{stage_id}/frames/claim")
async def claim_frames(
    stage_id: StageId, body: FrameClaimBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> FramesOut:
    """Take frames of a stage, for services; 409 if there is none to be had."""
    frames = await use_cases.stage_frames.claim(caller, scope, stage_id, body.worker, count=body.requested_count)
    return FramesOut(frames=[FrameOut.of(frame) for frame in frames])


@router.post("/frames/{frame_id}/heartbeat")
async def heartbeat_frame(
    frame_id: FrameId, body: FrameBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> FrameHeartbeatOut:
    """Keep a frame, for services; 409 if it does not count any more."""
    await use_cases.stage_frames.heartbeat(caller, scope, frame_id, body.worker, attempt=body.attempt)
    return FrameHeartbeatOut()


@router.post("/frames/{frame_id}/commit")
async def commit_frame(
    frame_id: FrameId, body: FrameCommitBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> FrameCommitOut:
    """Deliver the outcomes of a frame, for services; 409 with the winner if it has ended. Safe to repeat."""
    done = await use_cases.stage_frames.commit(
        caller,
        scope,
        frame_id,
        body.worker,
        attempt=body.attempt,
        rows=body.rows(),
        variables=Variables(values=body.variables),
        wants_next=body.wants_next,
    )
    following = FrameOut.of(done.next) if done.next else None
    action = "run" if following else "stop"
    return FrameCommitOut(stream_version=done.stream_version, next_action=action, next=following)
