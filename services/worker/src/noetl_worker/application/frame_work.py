"""Lets the worker's slots run frames as they run commands: claimed, kept alive, delivered once, stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from noetl_core.append import Fence
from noetl_core.canonical import JsonObject
from noetl_core.children.state import ParkedCall
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import (
    Abandonment,
    ClaimOutcome,
    CommandKey,
    Commands,
    Completion,
    GrantedCommand,
    Heartbeats,
    ToldChunk,
    Variables,
    Worker,
)
from noetl_core.ports.frames import CommittedRows, FrameClaim, FrameCommit, FrameKey, Frames, GrantedFrame, StageSlot
from noetl_core.values import replace

from noetl_worker.application.frame_limits import FramesAtWork

FRAME_COUNTS: Final = "frame"
"""Where the result of a frame has the counts of its rows until it is delivered."""


def slot_key(execution_id: int, *, stage_id: str, slot: int) -> CommandKey:
    """A slot of a stage, as something to claim."""
    return CommandKey(execution_id=execution_id, command_id=f"{stage_id}/{slot}")


class WorkOfPlanners:
    """Port `Commands` over commands and frames: ids of frames and slots have a `/`, ids of commands have none."""

    def __init__(
        self,
        commands: Commands,
        frames: Frames,
        *,
        at_work: FramesAtWork | None = None,
    ) -> None:
        self._commands = commands
        self._at_work = at_work or FramesAtWork()
        self._frames = frames

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        """Claim commands, and the next frames of slots."""
        ours = [key for key in keys if _is_frame(key)]
        others = [key for key in keys if not _is_frame(key)]
        outcomes: dict[CommandKey, ClaimOutcome] = {}
        if others:
            outcomes.update({one.key: one for one in await self._commands.claim(worker, others)})
        if ours:
            claims = await self._frames.claim_frames(worker, [_slot(key) for key in ours])
            outcomes.update({key: _claimed(key, one) for key, one in zip(ours, claims, strict=True)})
        return tuple(outcomes[key] for key in keys)

    async def complete(
        self,
        worker: Worker,
        key: CommandKey,
        result: Mapping[str, Any],
        *,
        wants_next: bool,
        variables: Variables | None = None,
        logs: PayloadRef | None = None,
    ) -> Completion:
        """Deliver a result; that of a frame is its commit, or its failure as a whole."""
        if not _is_frame(key):
            return await self._commands.complete(
                worker, key, result, wants_next=wants_next, variables=variables, logs=logs
            )
        context = dict(result.get("context") or {})
        counts = context.pop(FRAME_COUNTS, None)
        if counts is None:
            retryable = bool((context.get("error") or {}).get("retryable"))
            ended = await self._frames.fail_frame(
                worker, frame_key(key), result, retryable=retryable, wants_next=wants_next, logs=logs
            )
        else:
            rows = CommittedRows(result={**result, "context": context}, **counts)
            ended = await self._frames.commit_frame(
                worker, frame_key(key), rows, wants_next=wants_next, variables=variables, logs=logs
            )
        return _completed(ended)

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, JsonObject] | None = None
    ) -> Heartbeats:
        """Keep claims alive, those of frames too; when each is to be heard of is for the slots to say.

        A frame that hangs is told of no more: it is lost to us, and to somebody else when its lease is over.
        """
        news = progress or {}
        hung = self._at_work.hung()
        frames = [key for key in keys if _is_frame(key) and key not in hung]
        others = [key for key in keys if not _is_frame(key)]
        told_of_others = {key: one for key, one in news.items() if not _is_frame(key)}
        beats = await self._commands.heartbeat(worker, others, progress=told_of_others) if others else Heartbeats()
        lost, unanswered = set(beats.lost) | hung.intersection(keys), set(beats.unanswered)
        if frames:
            told_of_frames = {frame_key(key): one for key, one in news.items() if _is_frame(key)}
            told = await self._frames.heartbeat_frames(
                worker, [frame_key(key) for key in frames], progress=told_of_frames
            )
            lost |= {key for key in frames if frame_key(key) in told.lost}
            unanswered |= {key for key in frames if frame_key(key) in told.unanswered}
        return Heartbeats(lost=frozenset(lost), unanswered=frozenset(unanswered))

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        """Tell a chunk of a command; frames tell none."""
        return await self._commands.tell_chunk(worker, key, chunk)

    async def park(self, worker: Worker, key: CommandKey, call: ParkedCall, *, timeout_seconds: float) -> int:
        """Leave a command without a worker; frames do not wait."""
        return await self._commands.park(worker, key, call, timeout_seconds=timeout_seconds)

    async def abandon(
        self,
        key: CommandKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> Abandonment:
        """Give up a silent attempt at a command."""
        return await self._commands.abandon(
            key,
            expected_aggregate_version=expected_aggregate_version,
            lease_until=lease_until,
            reclaimer=reclaimer,
            fence=fence,
        )


def _claimed(key: CommandKey, claim: FrameClaim) -> ClaimOutcome:
    if claim.frame is None:
        return ClaimOutcome(key=key, refusal=claim.refusal)
    return ClaimOutcome(key=key, command=_as_command(claim.frame))


def _completed(ended: FrameCommit) -> Completion:
    following = _as_command(ended.next) if ended.next else None
    return Completion(stream_version=ended.stream_version, next=following)


def _as_command(frame: GrantedFrame) -> GrantedCommand:
    key = CommandKey(execution_id=frame.key.execution_id, command_id=f"{frame.key.frame_id}/{frame.key.attempt}")
    return replace(frame.step, key=key, frame=frame.rows, lease_left_seconds=frame.lease_left_seconds)


def _is_frame(key: CommandKey) -> bool:
    return "/" in key.command_id


def _slot(key: CommandKey) -> StageSlot:
    stage_id, _, slot = key.command_id.rpartition("/")
    return StageSlot(execution_id=key.execution_id, stage_id=stage_id, slot=int(slot))


def frame_key(key: CommandKey) -> FrameKey:
    """The attempt at a frame that a slot of the worker runs."""
    frame_id, _, attempt = key.command_id.rpartition("/")
    return FrameKey(execution_id=key.execution_id, frame_id=frame_id, attempt=int(attempt))
