"""What happens to a chunk that a worker tells: it counts once, in its place, and not while too many others wait."""

from __future__ import annotations

from enum import StrEnum

from noetl_core.commands.state import Command
from noetl_core.envelope import Draft
from noetl_core.errors import InvalidInput
from noetl_core.events import to_draft
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.ports.commands import ToldChunk
from noetl_core.streams.events import CallPartial
from noetl_core.streams.routing import takes_chunks
from noetl_core.streams.state import Chunk, Place


class Verdict(StrEnum):
    """What is done with a chunk."""

    TAKE = "take"
    KNOWN = "known"
    WAIT = "wait"


def judge(execution: Execution, command: Command, chunk: ToldChunk) -> Verdict:
    """Raises `InvalidInput` for a chunk out of turn, which no worker of ours tells."""
    place = Place(call=chunk.call, chunk=chunk.chunk_index)
    if place < command.streamed:
        return Verdict.KNOWN
    if not command.streamed.precedes(place):
        raise InvalidInput(f"chunk {chunk.chunk_index} of call {chunk.call} does not follow {command.streamed}")
    queue = execution.streams.get(command.step)
    return Verdict.WAIT if queue is not None and queue.is_full else Verdict.TAKE


def partial_draft(plan: Plan, command: Command, chunk: ToldChunk) -> Draft:
    """The event of a chunk; its key is the same for all attempts, so that the log itself refuses a second one."""
    told = CallPartial(
        **command.of_command,
        task=chunk.task,
        call=chunk.call,
        chunk_index=chunk.chunk_index,
        row_count=chunk.row_count,
        has_more=chunk.has_more,
        payload_ref=chunk.rows,
        activation=command.activation,
        loop_iteration_index=command.loop_index,
        queued=takes_chunks(plan, command.step) or None,
    )
    key = f"stream/{command.stream_key}/{chunk.call}/{chunk.chunk_index}"
    return to_draft(told, idempotency_key=key, trace=command.trace)


def chunk_of(execution: Execution, command: Command) -> Chunk | None:
    """What the activation takes that a command, or an evaluation, is for."""
    step = execution.steps.get(command.evaluation["step"] if command.evaluation else command.step)
    return step.chunk if step is not None and step.activation == command.activation else None
