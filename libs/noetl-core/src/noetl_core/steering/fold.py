"""How steering changes an execution. Total and pure: it never refuses a fact."""

from __future__ import annotations

from typing import Final, assert_never

from noetl_core.causes import is_cause
from noetl_core.commands.events import CommandCompleted, CommandFailed
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import DeadlineOf
from noetl_core.executions.state import Execution, ExecutionStatus, Step, StepStatus
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameFailed
from noetl_core.steering.events import ExecutionInherited, ExecutionPaused, ExecutionResumed, SteeringEvent
from noetl_core.steering.state import HeldCause
from noetl_core.streams.events import CallPartial
from noetl_core.values import replace


def evolve(execution: Execution, event: SteeringEvent) -> Execution:
    """The execution after somebody did something to it."""
    match event:
        case ExecutionPaused():
            if execution.status is not ExecutionStatus.RUNNING:
                return execution
            return replace(execution, status=ExecutionStatus.PAUSED, pauses=execution.pauses + 1)
        case ExecutionResumed():
            if execution.status is not ExecutionStatus.PAUSED:
                return execution
            return replace(execution, status=ExecutionStatus.RUNNING, released=execution.held, held=())
        case ExecutionInherited():
            inherited = {name: Step(status=StepStatus.DONE, result=result) for name, result in event.results.items()}
            return replace(
                execution,
                steps={**inherited, **execution.steps},
                variables={**execution.variables, **event.values},
                variable_refs={**execution.variable_refs, **event.refs},
            )
        case _:
            assert_never(event)


def is_held(execution: Execution, recorded: Recorded) -> bool:
    """Whether the decision on an event waits for the execution to be resumed.

    The end of an execution's time is not held: deadlines count while it is paused. Nor is that of a call which waits
    for a child: it issues nothing, and as many may wait as a loop has items.
    """
    if execution.status is not ExecutionStatus.PAUSED or not is_cause(recorded):
        return False
    content = recorded.content
    return not (isinstance(content, DeadlinePassed) and content.what != DeadlineOf.STEP)


def hold(execution: Execution, recorded: Recorded) -> Execution:
    """The execution with an event held back, if it has to be."""
    if not is_held(execution, recorded) or _is_covered(execution, recorded.content):
        return execution
    envelope = recorded.envelope
    held = HeldCause(
        version=recorded.stream_version,
        event_type=envelope.event_type,
        event_time=envelope.event_time,
        node_name=envelope.node_name,
        command_id=envelope.command_id,
        meta=envelope.meta,
    )
    return replace(execution, held=(*execution.held, held))


def _is_covered(execution: Execution, content: object) -> bool:
    """Whether deciding on what is held already decides on this too, so that what is held does not grow with items.

    One end of an item lets its loop go on as far as it can, and one chunk its queue: the state has all the others.
    """
    if isinstance(content, CallPartial):
        return any(held.event_type == "call.partial" for held in execution.held)
    ends = CommandCompleted | CommandFailed | FrameCommitted | FrameFailed | FrameAbandoned
    if not isinstance(content, ends) or content.loop_id is None:
        return False
    stage = execution.stages.get(content.step)
    if stage is not None and stage.loop_id == content.loop_id and stage.kind == "fanout":
        return False  # the end of each of its items is told, and as many are held as run at once
    return any(held.meta.get("loop_id") == content.loop_id and held.event_type in _ENDS for held in execution.held)


_ENDS: Final = frozenset({"command.completed", "command.failed", "frame.committed", "frame.failed", "frame.abandoned"})
