"""Which events may have to be followed by others."""

from __future__ import annotations

from typing import Final

from noetl_core.commands.events import CommandAbandoned, CommandCompleted, CommandFailed
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.executions.events import ExecutionCancelled, PlaybookCompleted, PlaybookFailed, PlaybookInitialized
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameFailed
from noetl_core.steering.events import ExecutionResumed
from noetl_core.streams.events import CallPartial

_ENDS: Final = (ExecutionCancelled, PlaybookCompleted, PlaybookFailed)
_CAUSES: Final = (
    PlaybookInitialized,
    CommandCompleted,
    CommandFailed,
    CommandAbandoned,
    FrameCommitted,
    FrameFailed,
    FrameAbandoned,
    DeadlinePassed,
    ExecutionResumed,
)


def is_cause(recorded: Recorded) -> bool:
    """Whether something may have to follow from this event."""
    content = recorded.content
    if content is None:
        return False
    if isinstance(content, CallPartial):
        return bool(content.queued)
    if isinstance(content, _ENDS):
        return recorded.decided_through == 0  # one from outside: whoever decides on an end leaves nothing open
    return isinstance(content, _CAUSES)
