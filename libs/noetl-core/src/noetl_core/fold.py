"""THE fold: what an execution looks like after its events. Planner, projector, replay and parity checks share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from noetl_core.children.events import ChildEvent
from noetl_core.children.fold import evolve as evolve_children
from noetl_core.commands.events import CallDone, CallFailed, CommandEvent, CommandIssued
from noetl_core.commands.fold import evolve as evolve_command
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.fold import open_deadline, pass_deadline, stop_left_open
from noetl_core.executions.events import ExecutionEvent, StepExited
from noetl_core.executions.fold import evolve as evolve_execution
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.recorded import Recorded
from noetl_core.steering.events import SteeringEvent
from noetl_core.steering.fold import evolve as evolve_steering
from noetl_core.steering.fold import hold
from noetl_core.streams.events import CallPartial, ChunkRouted
from noetl_core.streams.fold import close_queue, drop_queue, drop_queue_of_left, route_chunk, take_chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Every surface of one execution at one version."""

    execution: Execution
    commands: Mapping[str, Command] = field(default_factory=lambda: MappingProxyType({}))
    stream_version: int = 0
    last_event_id: int = 0
    last_event_type: str = ""
    last_node_name: str = ""
    event_time_watermark: datetime | None = None
    unknown_events: int = 0
    """Events of types that this release does not know: counted, never fatal."""


def empty(execution_id: int) -> State:
    """An execution of which nothing is known yet."""
    return State(execution=Execution(execution_id=execution_id))


def fold(state: State, recorded: Recorded) -> State:
    """The state after one more event. `stream_version` is the highest that was folded."""
    envelope, content = recorded.envelope, recorded.content
    execution, commands, unknown = state.execution, state.commands, state.unknown_events
    if not execution.tenant_id:
        execution = replace(
            execution,
            tenant_id=envelope.tenant_id,
            organization_id=envelope.organization_id,
            parent_execution_id=envelope.parent_execution_id,
            trace=envelope.trace,
        )
    if execution.released:  # They were for the decision on the event before this one.
        execution = replace(execution, released=())
    if isinstance(content, ExecutionEvent):
        execution = evolve_execution(execution, content, event_time=envelope.event_time)
        execution = open_deadline(execution, content, opened_at=recorded.ingest_time)
        if isinstance(content, StepExited):
            commands = stop_left_open(commands, recorded, step=content.step, activation=content.activation)
            execution = drop_queue(execution, content.step)
    elif isinstance(content, CommandEvent):
        if isinstance(content, CallPartial):
            execution = take_chunk(execution, content, commands.get(content.command_id))
        command = evolve_command(commands.get(content.command_id), content, recorded)
        commands = {**commands, content.command_id: command}
        counts = command.evaluation is None and command.status is not CommandStatus.STOPPED
        if isinstance(content, CallDone | CallFailed) and counts:
            execution = close_queue(_with_result(execution, content), content.step)
        elif isinstance(content, CommandIssued) and content.evaluation:
            execution = drop_queue_of_left(execution, content.evaluation)
    elif isinstance(content, ChunkRouted):
        execution = route_chunk(execution, content)
    elif isinstance(content, ChildEvent):
        execution, commands = evolve_children(execution, commands, content, recorded)
    elif isinstance(content, DeadlinePassed):
        execution, commands = pass_deadline(execution, commands, content, recorded)
    elif isinstance(content, SteeringEvent):
        execution = evolve_steering(execution, content)
    else:
        unknown += 1
    execution = hold(execution, recorded)
    watermark = state.event_time_watermark
    return State(
        execution=execution,
        commands=commands,
        stream_version=max(state.stream_version, recorded.stream_version),
        last_event_id=envelope.event_id,
        last_event_type=envelope.event_type,
        last_node_name=envelope.node_name or state.last_node_name,
        event_time_watermark=max(watermark, envelope.event_time) if watermark else envelope.event_time,
        unknown_events=unknown,
    )


def fold_all(state: State, events: Iterable[Recorded]) -> State:
    """The state after several events."""
    for recorded in events:
        state = fold(state, recorded)
    return state


def prune(state: State) -> State:
    """Drop closed commands that nothing can refer to any more, so that state stays bounded by the playbook's size.

    The last closed attempt of each step stays: a worker may repeat a completion whose answer it never saw.
    """
    execution = state.execution
    held = {cause.command_id for cause in (*execution.held, *execution.released)}
    latest: dict[tuple[str, bool], Command] = {}
    kept: dict[str, Command] = {}
    for command_id, command in state.commands.items():
        node = (command.step, command.evaluation is None)  # a step may be called as an internal command is
        if command.is_open or command_id in held:
            kept[command_id] = command
        elif (other := latest.get(node)) is None or other.stream_version < command.stream_version:
            latest[node] = command
    kept.update({command.command_id: command for command in latest.values()})
    return state if len(kept) == len(state.commands) else replace(state, commands=kept)


def _with_result(execution: Execution, content: CallDone | CallFailed) -> Execution:
    before = execution.steps.get(content.step, Step(status=StepStatus.ACTIVE))
    return replace(execution, steps={**execution.steps, content.step: replace(before, result=content.result)})
