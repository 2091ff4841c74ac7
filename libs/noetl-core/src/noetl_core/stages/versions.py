"""Which version of its aggregate an event will have that nobody has appended yet."""

from __future__ import annotations

from noetl_core.envelope import Draft
from noetl_core.fold import State


def next_aggregate_version(state: State, draft: Draft) -> int:
    """One more than the state knows of the command or the frame that a draft is about."""
    if draft.frame_id:
        stages = state.execution.stages.values()
        frames = (stage.frames.get(draft.frame_id) for stage in stages if stage.stage_id == draft.stage_id)
        frame = next((one for one in frames if one is not None), None)
        return (frame.aggregate_version if frame else 0) + 1
    command = state.commands.get(draft.command_id)
    return (command.aggregate_version if command else 0) + 1
