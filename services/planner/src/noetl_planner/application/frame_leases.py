"""For how long workers had frames, as their ends tell it: what leases and bounds of frames are chosen by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from noetl_core.envelope import Draft
from noetl_core.fold import State

ENDS = {"frame.committed": "committed", "frame.failed": "failed", "frame.abandoned": "abandoned"}


def leases_that_ended(before: State, drafts: Sequence[Draft]) -> Iterator[tuple[str, str, float]]:
    """Kind of the stage, how the attempt ended, and the seconds from its dispatch; `before` has it still running."""
    for draft in drafts:
        status = ENDS.get(draft.event_type)
        if status is None or draft.event_time is None:
            continue
        for stage in before.execution.stages.values():
            frame = stage.frames.get(draft.frame_id)
            if stage.stage_id == draft.stage_id and frame is not None and frame.dispatched_at is not None:
                yield stage.kind, status, max((draft.event_time - frame.dispatched_at).total_seconds(), 0.0)
