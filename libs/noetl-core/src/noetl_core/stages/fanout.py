"""When a fan-out tells what of its items, and what arcs see of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.loops.events import LoopDone
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameDispatched, FrameEnd, FrameFailed, StageOpened
from noetl_core.stages.fold import attempts_exhausted
from noetl_core.stages.shard_events import FaninCompleted, FanoutStarted, ShardDone, ShardEnqueued, ShardFailed
from noetl_core.stages.state import FrameOutcome, Stage, attempt_key

FANOUT: Final = "fanout"


def fanout_started(opened: StageOpened) -> FanoutStarted:
    """What comes before the stage of a fan-out."""
    return FanoutStarted(
        loop_id=opened.loop_id, step=opened.step, activation=opened.activation, total_shards=opened.collection_size
    )


def enqueued(stage: Stage, dispatched: FrameDispatched, *, iter_key: str) -> ShardEnqueued:
    """What comes before the frame of an item."""
    return ShardEnqueued(
        loop_id=stage.loop_id,
        step=stage.step,
        shard_id=dispatched.frame_id,
        iter_index=dispatched.start,
        iter_key=iter_key,
        shard_attempt=dispatched.attempt,
    )


def shard_end(ended: FrameEnd) -> ShardDone | ShardFailed | None:
    """The end of an item, if its frame was the last that tries it."""
    names: dict[str, Any] = {
        "loop_id": ended.loop_id,
        "step": ended.step,
        "shard_id": ended.frame_id,
        "iter_index": ended.start,
        "command_id": attempt_key(ended.frame_id, ended.attempt),
    }
    match ended:
        case FrameCommitted():
            return ShardFailed(**names, error=dict(ended.first_error or {})) if ended.failed else ShardDone(**names)
        case FrameFailed() | FrameAbandoned() if ended.outcome != FrameOutcome.FINAL:
            return None
        case FrameFailed():
            error = ((ended.result or {}).get("context") or {}).get("error") or {}
            return ShardFailed(**names, error={name: error.get(name) for name in ("code", "message")})
        case FrameAbandoned():
            return ShardFailed(**names, error=attempts_exhausted(ended.attempt))


def fanin_of(context: Mapping[str, Any]) -> dict[str, Any]:
    """§7.6: what arcs see as `fanin`, of the counts of a loop that is over; one that never opened has failed."""
    done, failed, total = context.get("success", 0), context.get("failed", 0), context.get("total", 0)
    is_complete = done >= total and "error" not in context
    status = "complete" if is_complete else ("partial" if done else "failed")
    return {"status": status, "done": done, "failed": failed, "total": total}


def fanin_completed(done: LoopDone) -> FaninCompleted:
    """What comes before the end of a fan-out, in the same append."""
    counts = {"success": done.success, "failed": done.failed, "total": done.collection_size}
    return FaninCompleted(loop_id=done.loop_id, epoch_id=done.loop_id, step=done.step, **fanin_of(counts))
