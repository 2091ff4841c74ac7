"""What a run came to: its events per aggregate and its last rows, without what differs from one run to the next.

Left out are ids, times, heartbeats, checkpoints, who did the work, and attempts that were given up. What remains is
the same whatever was killed meanwhile; where results themselves differ from run to run, `comparing` finds that out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.commands.events import CommandClaimed, CommandHeartbeat, CommandIssued, CommandStarted
from noetl_core.envelope import StoredEvent
from noetl_core.likeness.places import Places
from noetl_core.likeness.rows import row_accounts
from noetl_core.nodes import step_of
from noetl_core.recorded import Recorded, record
from noetl_core.replay.history import Replay
from noetl_core.stages.events import FrameCommitted, FrameEvent, FrameFailed
from noetl_core.stages.shard_events import ShardEnqueued

Account = Mapping[str, JsonValue]
"""By what it is about: events of an aggregate as a list, a row as an object."""

FRAME: Final = "frame "
"""Begins the names of single frames: which rows go into one may depend on how long they take."""

_LEFT_OUT: Final = frozenset(
    {
        "after", "attempt", "attempts", "bytes", "call_id", "cascade", "catalog_id", "cause", "child_execution_id",
        "command_id",
        "deadline", "decided_through", "duration_ms", "epoch_id", "frame_count", "frame_index", "from_version", "ipc",
        "lease_seconds", "locality", "logs", "loop_id", "metrics", "parent_ref", "parked", "placement", "ref_id",
        "request_sha256", "sequence", "shard_attempt", "shard_id", "size_bytes", "slot", "source_locality", "streamed",
        "timings", "to_version", "uri", "worker_id", "worker_locator",
    }
)  # fmt: skip
"""Facts of one run: who, where, when and how often; results are known by their digests."""

_BOOKKEEPING: Final = ("checkpoint.", "execution.retired", "execution.cascaded", "payload.")
_HELD = CommandClaimed | CommandStarted
_OF_ATTEMPTS = CommandIssued | CommandClaimed | CommandStarted


def account(events: Sequence[StoredEvent]) -> Account:
    """Of one execution that has ended."""
    recorded = [record(event) for event in events]
    replay = Replay(recorded[0].envelope.execution_id)
    replay.take(events)
    places = Places(recorded)
    return {**_event_accounts(recorded, places), **row_accounts(replay.result().rows, places)}


def _event_accounts(events: Sequence[Recorded], places: Places) -> Account:
    told: defaultdict[str, list[JsonObject]] = defaultdict(list)
    rows: defaultdict[str, _Rows] = defaultdict(_Rows)
    frames: dict[str, JsonValue] = {}
    for one in events:
        content = one.content
        if isinstance(content, FrameEvent):
            if isinstance(content, FrameCommitted | FrameFailed):
                rows[f"rows of {places.stage(content.stage_id)}"].take(content)
                if not places.is_cursor(content.stage_id) and content.start < content.stop:
                    frames[f"{FRAME}{places.frame(content.frame_id)}"] = _line(one)
        elif not _is_left_out(one, places):
            name, line = _name(one, places), _line(one)
            if not (isinstance(content, _HELD) and line in told[name]):  # whoever goes on after a wait claims it again
                told[name].append(line)
    lists: dict[str, JsonValue] = {name: [*sorted(lines, key=_order)] for name, lines in told.items()}
    return {**lists, **{name: counted.to_json() for name, counted in rows.items()}, **frames}


def _is_left_out(one: Recorded, places: Places) -> bool:
    kind, content = one.envelope.event_type, one.content
    if kind.startswith(_BOOKKEEPING) or isinstance(content, CommandHeartbeat | ShardEnqueued):
        return True
    given_up = one.envelope.command_id in places.abandoned and one.envelope.aggregate_type == "command"
    # What such an attempt has told of its chunks, and of the child that it waits for, stays told.
    return kind == "command.abandoned" or (given_up and isinstance(content, _OF_ATTEMPTS))


def _name(one: Recorded, places: Places) -> str:
    envelope = one.envelope
    place = places.commands.get(envelope.command_id)
    if envelope.aggregate_type == "command" and place is not None:
        return f"command {place}"
    if envelope.node_name:
        return f"step {step_of(envelope.node_name, envelope.meta)}"
    own = envelope.aggregate_id in ("", str(envelope.execution_id))
    return envelope.aggregate_type if own else f"{envelope.aggregate_type} {envelope.aggregate_id}"


def _line(one: Recorded) -> JsonObject:
    envelope = one.envelope
    line: JsonObject = {"event": envelope.event_type}
    meta = _plain(envelope.meta, str(envelope.execution_id))
    if len(meta.get("consumes", ())) > 1:  # a join: who comes last is chance
        meta = {**meta, "cause_step": None, "consumes": sorted(meta["consumes"])}
    elif envelope.event_type == "command.issued":  # the step says it
        meta.pop("cause_step", None)
    meta.pop("pipeline", None)  # under which node it is told depends on the release that issued the command
    if meta:
        line["meta"] = meta
    if envelope.result is not None:
        line["result"] = _plain(envelope.result, str(envelope.execution_id))
    if envelope.payload_ref is not None and envelope.event_type != "command.parked":  # which names the child
        line["payload"] = envelope.payload_ref.sha256
    return line


def _plain(value: Any, execution_id: str) -> Any:
    """Without what is left out, and with the execution's own id under one name."""
    if isinstance(value, Mapping):
        kept = {name: _plain(each, execution_id) for name, each in value.items() if name not in _LEFT_OUT}
        return {name: each for name, each in kept.items() if each is not None and each != {}}
    if isinstance(value, list | tuple):
        return [_plain(each, execution_id) for each in value]
    return value.replace(execution_id, "<execution>") if isinstance(value, str) else value


def _order(line: JsonObject) -> tuple[str, int, int]:
    """By what happened and of which item; the log's own order where that is the same."""
    meta = line.get("meta")
    known = meta if isinstance(meta, dict) else {}
    numbers = [known.get(name) for name in ("activation", "loop_iteration_index", "iter_index", "chunk_index")]
    first, second = ([number for number in numbers if isinstance(number, int)] + [0, 0])[:2]
    return str(line["event"]), first, second


class _Rows:
    """Which rows of a stage have ended and how, however they were cut into frames."""

    def __init__(self) -> None:
        self._done = 0
        self._counts: defaultdict[str, int] = defaultdict(int)

    def take(self, end: FrameCommitted | FrameFailed) -> None:
        if isinstance(end, FrameCommitted):
            self._done += end.stop - end.start
            for name in ("success", "failed", "breaks"):
                self._counts[name] += getattr(end, name)
        elif end.outcome == "final":
            self._done += end.stop - end.start
            self._counts["failed"] += end.stop - end.start

    def to_json(self) -> JsonObject:
        return {"rows": self._done, **self._counts}
