"""Gives chunks to the steps that take them: in order, one at a time, the step that told them last of all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from noetl_core.executions.state import Arrival, Execution, StepStatus
from noetl_core.streams.state import Chunk, ChunkQueue
from noetl_core.values import replace


class Delivery:
    """The queues of an execution while one decision is made."""

    def __init__(self, execution: Execution, *, asked: Collection[str] = ()) -> None:
        self._queues: dict[str, ChunkQueue] = dict(execution.streams)
        self._asked = set(asked)
        self._ends: dict[str, Mapping[str, Any]] = {}
        self._taking: dict[str, Chunk] = {
            name: step.chunk
            for name, step in execution.steps.items()
            if step.status is StepStatus.ACTIVE and step.chunk is not None
        }

    def ask(self, chunk: Chunk) -> None:
        """A worker evaluates what takes a chunk: it stays the first one of its queue, and the others wait for it."""
        queue = self._queues[chunk.step]
        self._queues[chunk.step] = replace(queue, waiting=(chunk, *queue.waiting))
        self._asked.add(chunk.step)

    def resume(self, chunk: Chunk) -> int | None:
        """A worker has evaluated: the activation whose chunk it is, taken from its queue; None if it is gone."""
        self._asked.discard(chunk.step)
        queue = self._queues.get(chunk.step)
        if queue is None or queue.waiting[:1] != (chunk,):
            return None
        self._queues[chunk.step] = replace(queue, waiting=queue.waiting[1:])
        return queue.activation

    def close(self, step: str, result: Mapping[str, Any]) -> bool:
        """The call of a step has ended; True if its activation still waits for chunks to be taken."""
        queue = self._queues.get(step)
        if queue is None:
            return False
        self._queues[step] = replace(queue, closed=True)
        self._ends[step] = result
        return True

    def entered(self, name: str, chunk: Chunk | None) -> None:
        """An activation has begun, for a chunk or for something else."""
        self._taking.pop(name, None)
        if chunk is not None:
            self._taking[name] = chunk

    def chunk_of(self, name: str) -> Chunk | None:
        """What the activation of a step was entered for."""
        return self._taking.get(name)

    def left(self, name: str) -> None:
        """An activation is over."""
        self._taking.pop(name, None)
        self._queues.pop(name, None)

    def next_chunk(self, arrivals: Collection[Arrival]) -> tuple[Chunk, int] | None:
        """A chunk whose turn has come, taken from its queue, and the activation that told it."""
        for step in self._idle(arrivals):
            queue = self._queues[step]
            if queue.waiting:
                first, *rest = queue.waiting
                self._queues[step] = replace(queue, waiting=tuple(rest))
                return first, queue.activation
        return None

    def next_end(
        self, execution: Execution, arrivals: Collection[Arrival]
    ) -> tuple[str, int, Mapping[str, Any]] | None:
        """A step whose call has ended and whose last chunk is done with: its activation can be left."""
        for step in self._idle(arrivals):
            queue = self._queues[step]
            if queue.closed and not queue.waiting:
                del self._queues[step]
                return step, queue.activation, self._ends.get(step) or execution.steps[step].result or {}
        return None

    def _idle(self, arrivals: Collection[Arrival]) -> Iterator[str]:
        """Steps none of whose chunks is being taken."""
        busy = {
            *self._asked,
            *(chunk.step for chunk in self._taking.values()),
            *(one.cause_step for one in arrivals if one.chunk is not None),
        }
        yield from [step for step in self._queues if step not in busy]
