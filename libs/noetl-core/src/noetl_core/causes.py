"""Which events may have to be followed by others."""

from __future__ import annotations

from noetl_core.commands.events import CommandAbandoned, CommandCompleted, CommandFailed
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.executions.events import ExecutionCancelled, PlaybookCompleted, PlaybookFailed, PlaybookInitialized
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameFailed
from noetl_core.steering.events import ExecutionResumed
from noetl_core.streams.events import CallPartial


def is_cause(recorded: Recorded) -> bool:
    """Whether something may have to follow from this event."""
    content = recorded.content
    if isinstance(content, CallPartial):
        return bool(content.queued)
    if isinstance(content, ExecutionCancelled | PlaybookCompleted | PlaybookFailed):
        return recorded.decided_through == 0  # one from outside: whoever decides on an end leaves nothing open
    return isinstance(
        content,
        PlaybookInitialized
        | CommandCompleted
        | CommandFailed
        | CommandAbandoned
        | FrameCommitted
        | FrameFailed
        | FrameAbandoned
        | DeadlinePassed
        | ExecutionResumed,
    )
