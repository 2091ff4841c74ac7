"""When a checkpoint is told in the log: seldom, by one of those who could, and never as if something had happened."""

from __future__ import annotations

from typing import Final

from noetl_core.append import AppendRequest, Fence, StreamAppend
from noetl_core.catalog import to_draft
from noetl_core.checkpoints.events import CheckpointCommitted
from noetl_core.fold import State

EVENTS_BETWEEN: Final = 1_000
"""Other events between two checkpoints, at least: one event in a thousand is the most that they add to a log."""
PRODUCER: Final = "urn:noetl:service:projector"


def is_due(state: State, *, events_between: int = EVENTS_BETWEEN) -> bool:
    """Whether enough has happened since the last one; after its end nothing more is told of an execution."""
    return state.execution.ended_at is None and state.stream_version - state.checkpoint_version >= events_between


def activity(before: State, after: State) -> int:
    """Events between two states that tell of something other than how far they have been projected."""
    return after.stream_version - before.stream_version - (after.checkpoints - before.checkpoints)


def checkpoint_request(state: State, *, position: int, last_event_id: int, fence: Fence) -> AppendRequest:
    """The append of the next checkpoint. Its key is its number: the first of those who tell it wins."""
    execution, number = state.execution, state.checkpoints + 1
    content = CheckpointCommitted(
        epoch_id=f"checkpoint_{execution.execution_id}_{number}", position=position, last_event_id=str(last_event_id)
    )
    draft = to_draft(content, idempotency_key=f"checkpoint/{number}")
    return AppendRequest(
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        streams=(StreamAppend(execution_id=execution.execution_id, drafts=(draft,)),),
        fence=fence,
        producer=PRODUCER,
    )
