"""What holds at the end of every history, whatever happened in it; each sentence that does not is a problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from noetl_core.causes import is_cause
from noetl_core.commands.events import (
    CallDone,
    CallFailed,
    CommandAbandoned,
    CommandCompleted,
    CommandFailed,
    CommandIssued,
)
from noetl_core.envelope import StoredEvent, verify_link
from noetl_core.errors import Corrupt
from noetl_core.events import is_allowed_after_end, is_terminal
from noetl_core.executions.events import StepEntered, StepExited
from noetl_core.executions.left_open import unfinished_loops
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, empty, fold_all, prune
from noetl_core.loops.events import LoopDone, LoopStarted
from noetl_core.recorded import Recorded, record
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameDispatched, FrameFailed, StageClosed
from noetl_core.state_json import encode_state

FrameEnd = FrameCommitted | FrameFailed | FrameAbandoned


class Stream:
    """The history of one execution, read once for all that is asked of it."""

    def __init__(self, execution_id: int, stored: Sequence[StoredEvent]) -> None:
        self.execution_id = execution_id
        self.stored = stored
        self.events: list[Recorded] = [record(event) for event in stored]
        self.state: State = prune(fold_all(empty(execution_id), self.events))
        self.status = self.state.execution.status

    @property
    def was_ended(self) -> bool:
        """Whether somebody ended it, or its time did: then much is left undone."""
        error = self.state.execution.error or {}
        return self.status is ExecutionStatus.CANCELLED or error.get("code") == "execution.timeout"


def of_stream(stream: Stream) -> Iterator[str]:
    """Everything that is wrong with one history."""
    for check in CHECKS:
        for problem in check(stream):
            yield f"execution {stream.execution_id}: {problem}"


def _versions_have_no_gap_and_the_chain_holds(stream: Stream) -> Iterator[str]:
    before = ""
    for place, event in enumerate(stream.stored, start=1):
        if event.stream_version != place:
            yield f"version {event.stream_version} stands in place {place}"
        if event.prev_checksum != before:
            yield f"version {place} does not continue the chain"
        before = event.checksum
        try:
            verify_link(event)
        except Corrupt as exc:
            yield exc.message


def _keys_and_ids_are_unique(stream: Stream) -> Iterator[str]:
    yield from _doubled("key", [event.envelope.idempotency_key for event in stream.events])
    yield from _doubled("event id", [event.envelope.event_id for event in stream.events])


def _it_ends_once_and_little_follows(stream: Stream) -> Iterator[str]:
    kinds = [event.envelope.event_type for event in stream.events]
    ends = [place for place, kind in enumerate(kinds) if is_terminal(kind)]
    if len(ends) != 1:
        yield f"{len(ends)} terminal events: {[kinds[place] for place in ends]}"
        return
    for kind in kinds[ends[0] + 1 :]:
        if not is_allowed_after_end(kind):
            yield f"{kind} after the end"
    if unfinished_loops(stream.state):
        yield f"loops without an end: {sorted(unfinished_loops(stream.state))}"


def _attempts_end_once(stream: Stream) -> Iterator[str]:
    issued = [one.content for one in stream.events if isinstance(one.content, CommandIssued)]
    ends = [
        one.content.command_id
        for one in stream.events
        if isinstance(one.content, CommandCompleted | CommandFailed | CommandAbandoned)
    ]
    yield from _doubled("command", [one.command_id for one in issued])
    yield from _doubled("end of command", ends)
    attempts = Counter((one.step, one.activation, one.loop_iteration_index, _asked(one), one.attempt) for one in issued)
    yield from (f"attempt {which} issued {count} times" for which, count in attempts.items() if count > 1)
    if not stream.was_ended and stream.status is ExecutionStatus.COMPLETED:
        open_ones = {one.command_id for one in issued} - set(ends)
        open_ones -= _cut_short(stream)
        if open_ones:
            yield f"commands without an end: {sorted(open_ones)}"


def _cut_short(stream: Stream) -> set[str]:
    """Commands of steps that ended without them: their time was over."""
    late = {
        (one.content.step, one.content.activation)
        for one in stream.events
        if isinstance(one.content, StepExited) and one.content.status == "error"
    }
    return {
        one.content.command_id
        for one in stream.events
        if isinstance(one.content, CommandIssued) and (one.content.step, one.content.activation) in late
    }


def _outcomes_count_once(stream: Stream) -> Iterator[str]:
    """Whatever was tried how often: of each activation and each item the log takes one outcome."""
    place_of = {
        one.content.command_id: (
            one.content.step,
            one.content.activation,
            one.content.loop_iteration_index,
            _asked(one.content),
        )
        for one in stream.events
        if isinstance(one.content, CommandIssued)
    }
    outcomes = [
        place_of.get(one.content.command_id) for one in stream.events if isinstance(one.content, CallDone | CallFailed)
    ]
    yield from _doubled("outcome of", outcomes)


def _asked(issued: CommandIssued) -> str:
    return str(issued.evaluation["place"]) if issued.evaluation else ""


def _frames_commit_once(stream: Stream) -> Iterator[str]:
    ends = [one.content for one in stream.events if isinstance(one.content, FrameEnd)]
    yield from _doubled("end of frame", [(one.frame_id, one.attempt) for one in ends])
    yield from _doubled("commit of frame", [one.frame_id for one in ends if isinstance(one, FrameCommitted)])
    held: dict[tuple[str, int], str] = {}
    for one in stream.events:
        content = one.content
        if isinstance(content, FrameDispatched):
            slot = (content.stage_id, content.slot)
            if slot in held:
                yield f"slot {slot} has {content.frame_id} and {held[slot]}"
            held[slot] = content.frame_id
        elif isinstance(content, FrameEnd):
            held.pop((content.stage_id, content.slot), None)
    for stage in stream.events:
        if isinstance(stage.content, StageClosed) and stage.content.status != "cancelled" and not stream.was_ended:
            rows = [
                row
                for end in ends
                if end.stage_id == stage.content.stage_id and _is_final(end)
                for row in range(end.start, end.stop)
            ]
            yield from _doubled(f"row of {stage.content.step}", rows)


def _is_final(end: FrameEnd) -> bool:
    return isinstance(end, FrameCommitted) or end.outcome == "final"


def _activations_happen_once(stream: Stream) -> Iterator[str]:
    entered = [
        (one.content.step, one.content.activation) for one in stream.events if isinstance(one.content, StepEntered)
    ]
    left = [(one.content.step, one.content.activation) for one in stream.events if isinstance(one.content, StepExited)]
    yield from _doubled("activation", entered)
    yield from _doubled("exit", left)
    if not stream.was_ended and set(entered) != set(left):
        yield f"activations without an exit: {sorted(set(entered) - set(left))}"


def _loops_are_done_once(stream: Stream) -> Iterator[str]:
    begun = [one.content.loop_id for one in stream.events if isinstance(one.content, LoopStarted)]
    done = [one.content.loop_id for one in stream.events if isinstance(one.content, LoopDone)]
    yield from _doubled("loop", begun)
    yield from _doubled("end of loop", done)
    if set(begun) - set(done):
        yield f"loops that are not done: {sorted(set(begun) - set(done))}"


def _decisions_follow_their_causes(stream: Stream) -> Iterator[str]:
    for one in stream.events:
        cause = one.decided_through
        if cause == 0:
            continue
        if cause >= one.stream_version or not is_cause(stream.events[cause - 1]):
            yield f"version {one.stream_version} was decided from version {cause}, which causes nothing"


CHECKS: tuple[Callable[[Stream], Iterator[str]], ...] = (
    _versions_have_no_gap_and_the_chain_holds,
    _keys_and_ids_are_unique,
    _it_ends_once_and_little_follows,
    _attempts_end_once,
    _outcomes_count_once,
    _frames_commit_once,
    _activations_happen_once,
    _loops_are_done_once,
    _decisions_follow_their_causes,
)


def _doubled(what: str, found: Sequence[Any]) -> Iterator[str]:
    for one, count in Counter(found).items():
        if count > 1:
            yield f"{what} {one} {count} times"


def row_equals_replay(stream: Stream, row: bytes | None) -> Iterator[str]:
    """The projection was folded in pieces, by several processes, from deliveries of any kind."""
    if row is None:
        yield f"execution {stream.execution_id}: no row"
    elif row != encode_state(stream.state):
        yield f"execution {stream.execution_id}: the row differs from a replay of the log"
