"""THE fold: what an execution looks like after its events. Planner, projector, replay and parity checks share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from noetl_core.business_objects.events import ObjectChanged
from noetl_core.checkpoints.events import CheckpointCommitted
from noetl_core.children.events import ChildEvent
from noetl_core.children.fold import evolve as evolve_children
from noetl_core.collection.events import COLLECTION_PATH, CollectionEvent, PayloadsMarked
from noetl_core.commands.events import CallDone, CallFailed, CommandEvent, CommandIssued
from noetl_core.commands.fold import evolve as evolve_command
from noetl_core.commands.fold import forget_answers
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.fold import open_deadline, pass_deadline, stop_left_open
from noetl_core.executions.events import ExecutionEvent, StepEntered, StepExited, StepSkipped
from noetl_core.executions.fold import evolve as evolve_execution
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.loops.events import LoopDone, LoopEvent
from noetl_core.loops.fold import evolve as evolve_loops
from noetl_core.loops.fold import take_outcome
from noetl_core.nodes import step_of
from noetl_core.recorded import Recorded
from noetl_core.stages.events import StageEvent
from noetl_core.stages.fold import evolve as evolve_stages
from noetl_core.stages.shard_events import ShardEvent
from noetl_core.steering.events import SteeringEvent
from noetl_core.steering.fold import evolve as evolve_steering
from noetl_core.steering.fold import hold
from noetl_core.streams.events import CallPartial, ChunkRouted
from noetl_core.streams.fold import close_queue, drop_queue, drop_queue_of_left, route_chunk, take_chunk
from noetl_core.values import dataclass, replace


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
    checkpoints: int = 0
    """How many were told."""
    checkpoint_version: int = 0
    """Of the last of them."""


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
    if content is None:  # first, since every user's own event is one of these
        unknown += 1
    elif isinstance(content, ExecutionEvent):
        execution = evolve_execution(execution, content, event_time=envelope.event_time)
        execution = open_deadline(execution, content, opened_at=recorded.ingest_time)
        if isinstance(content, StepEntered | StepExited | StepSkipped):
            commands = forget_answers(commands, content.step)
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
            execution = _with_outcome(execution, content, made_at=command.worker_locator)
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
    elif isinstance(content, LoopEvent):
        execution = _with_loop(execution, content, recorded.stream_version)
    elif isinstance(content, StageEvent):
        execution = evolve_stages(execution, content, recorded)
    elif isinstance(content, ShardEvent | ObjectChanged):
        # What the first tell has been counted by the facts about frames. The others route nothing, and there may be
        # any number of them: rows are all that is kept.
        pass
    elif isinstance(content, CollectionEvent):
        if isinstance(content, PayloadsMarked):  # A stream without a playbook.
            execution = replace(execution, path=COLLECTION_PATH, started_at=envelope.event_time)
    elif not isinstance(content, CheckpointCommitted):
        unknown += 1
    execution = hold(execution, recorded)
    watermark = state.event_time_watermark
    if isinstance(content, CheckpointCommitted):  # It has a place in the history, and nothing happened.
        return replace(
            state,
            execution=execution,
            stream_version=max(state.stream_version, recorded.stream_version),
            last_event_id=envelope.event_id,
            checkpoints=state.checkpoints + 1,
            checkpoint_version=max(state.checkpoint_version, recorded.stream_version),
        )
    return State(
        execution=execution,
        commands=commands,
        stream_version=max(state.stream_version, recorded.stream_version),
        last_event_id=envelope.event_id,
        last_event_type=envelope.event_type,
        last_node_name=step_of(envelope.node_name, envelope.meta) or state.last_node_name,
        event_time_watermark=max(watermark, envelope.event_time) if watermark else envelope.event_time,
        unknown_events=unknown,
        checkpoints=state.checkpoints,
        checkpoint_version=state.checkpoint_version,
    )


def fold_all(state: State, events: Iterable[Recorded]) -> State:
    """The state after several events."""
    for recorded in events:
        state = fold(state, recorded)
    return state


def prune(state: State) -> State:
    """Drop closed commands that nothing can refer to any more, so that state stays bounded by the playbook's size.

    The last closed attempt of each step stays, and those with whose completion an open one was handed over: a worker
    may repeat a completion whose answer it never saw.
    """
    execution = state.execution
    held = {cause.command_id for cause in (*execution.held, *execution.released)}
    latest: dict[tuple[str, bool], Command] = {}
    kept: dict[str, Command] = {}
    handing = {command.claimed_after for command in state.commands.values() if command.is_open}
    for command_id, command in state.commands.items():
        node = (command.step, command.evaluation is None)  # a step may be called as an internal command is
        if command.is_open or command_id in held or command_id in handing:
            kept[command_id] = command
        if command.is_open or command_id in held:
            continue
        if (other := latest.get(node)) is None or _recency(other) < _recency(command):
            latest[node] = command
    kept.update({command.command_id: command for command in latest.values()})
    return state if len(kept) == len(state.commands) else replace(state, commands=kept)


def _recency(command: Command) -> tuple[int, int, str]:
    """One event may close several commands: which of them is the last must not depend on the order that they stand in.

    States that were stored have another one than those that were only folded.
    """
    return command.stream_version, command.issued_version, command.command_id


def _with_outcome(execution: Execution, content: CallDone | CallFailed, *, made_at: str) -> Execution:
    """An item's outcome counts for its loop; any other is the result of its step."""
    if content.loop_id is None or content.loop_iteration_index is None:
        execution = _with_result(execution, content.step, content.result, made_at=made_at)
        return close_queue(execution, content.step)
    loops = take_outcome(
        execution.loops,
        step=content.step,
        loop_id=content.loop_id,
        index=content.loop_iteration_index,
        result=content.result,
    )
    return replace(execution, loops=loops)


def _with_loop(execution: Execution, content: LoopEvent, stream_version: int) -> Execution:
    if isinstance(content, LoopDone):
        execution = _with_result(execution, content.step, content.result)
    return replace(execution, loops=evolve_loops(execution.loops, content, stream_version=stream_version))


def _with_result(execution: Execution, step: str, result: Mapping[str, Any] | None, *, made_at: str = "") -> Execution:
    before = execution.steps.get(step, Step(status=StepStatus.ACTIVE))
    return replace(execution, steps={**execution.steps, step: replace(before, result=result, made_at=made_at)})
