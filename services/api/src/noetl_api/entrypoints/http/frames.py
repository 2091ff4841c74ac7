"""Frames over HTTP, for workers that are no NoETL worker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from noetl_core.errors import InvalidInput
from noetl_core.executions.reducing import REDUCE
from noetl_core.payloads import PAYLOAD_STORE, PayloadRef
from noetl_core.placement import Locality, max_distance_of
from noetl_core.ports.commands import Variables, Worker
from noetl_core.ports.frames import ANY_SLOT, CommittedRows, has_only_hint
from noetl_core.stages.policy import MAX_SECONDS
from noetl_core.values import replace
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.application.frames import ClaimedFrame, Wish
from noetl_api.entrypoints.http.commands import GrantedOut
from noetl_api.entrypoints.http.dependencies import CallerOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api", tags=["frames"])

StageId = Annotated[str, Path(description="Id of the stage, as `stage.opened` tells it.")]
FrameId = Annotated[str, Path(description="Id of the frame, as a claim tells it.")]
_MOST = 2**31 - 1
"""What numbers of messages between services can carry."""
_ADDRESS = ("uri", "sha256", "media_type", "bytes")
"""What a reference says of the bytes; the rest is about what they are to others."""


def _payload(reference: Mapping[str, Any], name: str) -> PayloadRef:
    """Where the bytes are that a worker has stored; raises `InvalidInput` if that is not said."""
    if has_only_hint(reference):
        raise InvalidInput(f"{name} is a hint of where a copy is nearby, and does not say where the bytes are stored")
    missing = [field for field in _ADDRESS if field not in reference]
    if missing:
        raise InvalidInput(f"{name} lacks {', '.join(missing)}")
    return PayloadRef.from_json({"kind": PAYLOAD_STORE, **{field: reference[field] for field in _ADDRESS}})


class LocalityIn(BaseModel):
    """What the worker wants of where the data of a frame are."""

    model_config = ConfigDict(extra="forbid")

    prefer_node: str = Field(default="", max_length=255)
    prefer_zone: str = Field(default="", max_length=255)
    max_distance: str = Field(default="", description="node, zone, region, cluster or any, which is the default.")
    source_locality: str = Field(default="", description="Where they are, as a locator, if the worker knows better.")

    def locality(self) -> Locality:
        return Locality(
            prefer_node=self.prefer_node,
            prefer_zone=self.prefer_zone,
            max_distance=max_distance_of(self.max_distance),
            source=self.source_locality,
        )


class WorkerBody(BaseModel):
    """Who asks."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str = Field(min_length=1, max_length=255)
    pool: str = "default"
    worker_locator: str = Field(default="", description="Where the worker is.")
    locality: LocalityIn = Field(default_factory=LocalityIn)

    @property
    def worker(self) -> Worker:
        return Worker(
            worker_id=self.worker_id, pool=self.pool, locator=self.worker_locator, locality=self.locality.locality()
        )


class ClaimCursorIn(BaseModel):
    """Which slot of the stage; what a claim has told besides is passed over."""

    model_config = ConfigDict(extra="ignore")

    worker_slot_id: int = Field(default=ANY_SLOT, ge=ANY_SLOT, le=_MOST)


class ClaimPolicyIn(BaseModel):
    """What the worker takes less of than the policy of the stage says; all else is the stage's to say."""

    model_config = ConfigDict(extra="forbid")

    max_rows: int = Field(default=0, ge=0, le=_MOST)


class FrameClaimBody(WorkerBody):
    """How many frames are wanted, and of what kind."""

    requested_count: int = Field(default=1, ge=1, le=100)
    command_id: str = Field(
        default="",
        max_length=255,
        description="How the worker calls this claim: repeated with the same one, it gives the frames that it gave "
        "before, as long as the worker holds them. Without it, only a claim that names its slot is safe to repeat.",
    )
    lease_seconds: float = Field(default=0, ge=0, le=MAX_SECONDS, description="0 is as long as the stage says.")
    cursor: ClaimCursorIn = Field(default_factory=ClaimCursorIn)
    frame_policy: ClaimPolicyIn = Field(default_factory=ClaimPolicyIn)

    def wish(self) -> Wish:
        return Wish(
            count=self.requested_count,
            claim_id=self.command_id,
            slot=self.cursor.worker_slot_id,
            lease_seconds=self.lease_seconds,
            max_rows=self.frame_policy.max_rows,
        )


class FrameBody(WorkerBody):
    """Which attempt at the frame it is about."""

    attempt: int = Field(default=0, ge=0, le=_MOST, description="0 is the one that the worker holds.")


class FrameStartBody(FrameBody):
    """Which rows the frame has claimed through the cursor of its loop."""

    rows_ref: dict[str, Any] = Field(
        description="Where the list of rows is stored: `{uri, sha256, media_type, bytes}`, as `collection` tells it."
    )
    row_count: int = Field(ge=1, le=_MOST, description="How many there are.")

    def rows(self) -> PayloadRef:
        return _payload(self.rows_ref, "rows_ref")


class FrameHeartbeatBody(FrameBody):
    """That the frame is still being run."""

    lease_seconds: float = Field(default=0, ge=0, le=MAX_SECONDS, description="0 is as long as the stage says.")
    status: Literal["RUNNING", "running"] = "RUNNING"


class CursorIn(BaseModel):
    """Where the rows of the frame stand; what a claim or a start has told besides is passed over."""

    model_config = ConfigDict(extra="ignore")

    start: int = Field(ge=0, le=_MOST)


class FrameErrorIn(BaseModel):
    """Why a whole frame failed."""

    model_config = ConfigDict(extra="forbid")

    kind: str = "unknown"
    code: str = Field(default="FRAME_FAILED", max_length=128)
    message: str = Field(default="", max_length=1000)
    retryable: bool = False


class FrameCommitBody(FrameBody):
    """What became of the rows of a frame."""

    cursor: CursorIn | None = Field(default=None, description="As the claim has told it, or the start of the frame.")
    output_ref: dict[str, Any] | None = Field(
        default=None,
        description="Where the list of outcomes is stored, of a reduce its output: "
        "`{uri, sha256, media_type, bytes, ...}`.",
    )
    row_count: int | None = Field(
        default=None,
        ge=0,
        le=_MOST,
        description="Rows that have an outcome; the others go to another frame. "
        "0, without `output_ref`, says that the claim of a frame of a cursor gave none.",
    )
    status: Literal["COMMITTED", "committed", "ok", "FAILED", "failed", "error"] = "COMMITTED"
    events_emitted: int = Field(
        default=0, ge=0, le=_MOST, description="How many events the worker has had told meanwhile."
    )
    failed: int = Field(default=0, ge=0, le=_MOST, description="How many of the rows failed.")
    first_error: dict[str, Any] | None = None
    error: FrameErrorIn = Field(default_factory=FrameErrorIn, description="With `failed`: why all of it did.")
    variables: dict[str, Any] = Field(default_factory=dict, description="Variables of the execution that were set.")
    wants_next: bool = Field(default=False, description="Whether the slot's next frame is to be claimed at once.")

    @property
    def has_failed(self) -> bool:
        return self.status.lower() in {"failed", "error"}

    def output(self) -> PayloadRef | None:
        return None if self.output_ref is None else _payload(self.output_ref, "output_ref")

    def rows(self) -> CommittedRows:
        if self.cursor is None or self.row_count is None or (self.output_ref is None) != (self.row_count == 0):
            raise InvalidInput(
                "a frame is committed with its cursor, an output_ref and a row_count from 1; "
                "one of a cursor that found no rows with a row_count of 0 and no output_ref"
            )
        emitted = {"events_emitted": self.events_emitted} if self.events_emitted else {}
        result = {"status": "ok", "reference": self.output_ref, "parent_ref": None, "context": emitted}
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
    kind: str = Field(description="Of its stage: `loop`, `fanout` or `reduce`.")
    rows: list[Any] | None = Field(
        description="The rows; null if they are stored, still to be claimed (`cursor.claims`), or those of a reduce."
    )
    collection: dict[str, Any] | None = Field(description="Where they are stored, with the row with which it begins.")
    sources: list[dict[str, Any]] | None = Field(
        description="Of a reduce: the steps whose output it reads, `[{step, reference}]`; "
        "`cursor.start` is its partition, of `cursor.total`."
    )
    lease_seconds: float = Field(
        description="For how long the worker has it without a heartbeat: what was granted, or what is left of it."
    )
    lease_until: datetime
    dsl_ref: str = Field(description="Which step of which playbook it runs.")
    frame_policy: dict[str, Any]
    step: GrantedOut

    @classmethod
    def of(cls, claimed: ClaimedFrame) -> FrameOut:
        frame, rows = claimed.frame, claimed.frame.rows
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
            kind=rows.kind,
            rows=None if rows.values is None else list(rows.values),
            collection=stored,
            sources=[dict(one) for one in rows.sources] if rows.kind == REDUCE else None,
            lease_seconds=claimed.lease_seconds,
            lease_until=claimed.lease_until,
            dsl_ref=claimed.dsl_ref,
            frame_policy=rows.bounds.to_json(),
            step=GrantedOut.of(replace(frame.step, lease_seconds=claimed.lease_seconds)),
        )


class FramesOut(BaseModel):
    """Frames that were claimed."""

    frames: list[FrameOut]


class StartedCursorOut(BaseModel):
    """Which rows of the loop those of the frame are: what it is committed with."""

    start: int
    stop: int


class FrameStartOut(BaseModel):
    """The rows are the frame's: now the claim that gave them can be committed."""

    ok: bool = True
    cursor: StartedCursorOut


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
    """Take frames of a stage, for services; 409 if there is none to be had.

    Safe to repeat with a slot or a `command_id`.
    """
    frames = await use_cases.stage_frames.claim(caller, scope, stage_id, body.worker, body.wish())
    return FramesOut(frames=[FrameOut.of(frame) for frame in frames])


@router.post("/frames/{frame_id}/start")
async def start_frame(
    frame_id: FrameId, body: FrameStartBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> FrameStartOut:
    """Tell the rows that a frame of a cursor has claimed, before that claim is committed, for services.

    409 `frame.has_rows` if others were told before, and with the event that ended the frame if one did. Safe to repeat.
    """
    start = await use_cases.stage_frames.start(
        caller, scope, frame_id, body.worker, attempt=body.attempt, rows=body.rows(), row_count=body.row_count
    )
    return FrameStartOut(cursor=StartedCursorOut(start=start, stop=start + body.row_count))


@router.post("/frames/{frame_id}/heartbeat")
async def heartbeat_frame(
    frame_id: FrameId, body: FrameHeartbeatBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> FrameHeartbeatOut:
    """Keep a frame, for services; 409 if it does not count any more."""
    await use_cases.stage_frames.heartbeat(
        caller, scope, frame_id, body.worker, attempt=body.attempt, lease_seconds=body.lease_seconds
    )
    return FrameHeartbeatOut()


@router.post("/frames/{frame_id}/commit")
async def commit_frame(
    frame_id: FrameId, body: FrameCommitBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> FrameCommitOut:
    """Deliver the outcomes of a frame, or its failure, for services; 409 with the event that ended it before.

    Safe to repeat.
    """
    frames = use_cases.stage_frames
    if body.has_failed:
        done, following = await frames.fail(
            caller,
            scope,
            frame_id,
            body.worker,
            attempt=body.attempt,
            error=body.error.model_dump(),
            wants_next=body.wants_next,
        )
    else:
        done, following = await frames.commit(
            caller,
            scope,
            frame_id,
            body.worker,
            attempt=body.attempt,
            rows=body.rows(),
            output=body.output(),
            variables=Variables(values=body.variables),
            wants_next=body.wants_next,
        )
    frame = FrameOut.of(following) if following else None
    return FrameCommitOut(stream_version=done.stream_version, next_action="run" if frame else "stop", next=frame)
