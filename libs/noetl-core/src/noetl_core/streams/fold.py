"""How facts change the queues of chunks. Total and pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.commands.state import Command
from noetl_core.executions.arrivals import arrived
from noetl_core.executions.state import Arrival, Execution
from noetl_core.streams.events import CallPartial, ChunkRouted
from noetl_core.streams.state import Chunk, ChunkQueue
from noetl_core.values import replace


def take_chunk(execution: Execution, event: CallPartial, command: Command | None) -> Execution:
    """A chunk waits for its turn, unless nobody takes it, or its attempt had ended before."""
    if not event.queued or command is None or not command.is_open:
        return execution
    chunk = Chunk(
        step=event.step,
        task=event.task,
        call=event.call,
        chunk_index=event.chunk_index,
        row_count=event.row_count,
        has_more=event.has_more,
        reference=event.payload_ref.to_json(),
    )
    queue = execution.streams.get(event.step) or ChunkQueue(activation=command.activation)
    longer = replace(queue, waiting=(*queue.waiting, chunk))
    return replace(execution, streams={**execution.streams, event.step: longer})


def close_queue(execution: Execution, step: str) -> Execution:
    """The call has ended: the chunks that still wait are the last ones."""
    queue = execution.streams.get(step)
    if queue is None or queue.closed:
        return execution
    return replace(execution, streams={**execution.streams, step: replace(queue, closed=True)})


def route_chunk(execution: Execution, event: ChunkRouted) -> Execution:
    """The first chunk leaves its queue and arrives where arcs have led it."""
    queue = execution.streams.get(event.step)
    if queue is None or not queue.waiting:
        return execution
    first, *rest = queue.waiting
    fired = (Arrival(step=target, cause_step=event.step, chunk=first) for target in event.fired)
    failure = execution.failure
    if failure is None and event.error is not None:
        failure = event.error
    return replace(
        execution,
        streams={**execution.streams, event.step: replace(queue, waiting=tuple(rest))},
        arrivals=arrived(execution.arrivals, fired),
        failure=failure,
    )


def drop_queue(execution: Execution, step: str) -> Execution:
    """The activation is over, and with it whatever was left of its stream."""
    if step not in execution.streams:
        return execution
    return replace(execution, streams={name: queue for name, queue in execution.streams.items() if name != step})


def drop_queue_of_left(execution: Execution, evaluation: Mapping[str, Any]) -> Execution:
    """A worker evaluates what leads on from a step: all of its chunks have been taken, and it is not left again."""
    return drop_queue(execution, evaluation["step"]) if evaluation["place"] == "leave" else execution
