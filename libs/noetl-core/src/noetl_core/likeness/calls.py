"""Which calls a history tells of, and which of them ran more than once: outside, each of those may have had effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from noetl_core.canonical import JsonObject
from noetl_core.commands.events import CallDone, CallFailed, CommandStarted
from noetl_core.ids import effect_key
from noetl_core.likeness.places import Place, Places
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameCommitted, FrameStarted
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedCall:
    """A call that more than one attempt has begun; the key for its effects is one."""

    call: str
    attempts: int
    idempotency_key: str

    def to_json(self) -> JsonObject:
        """For whoever reads it with a program."""
        return {"call": self.call, "attempts": self.attempts, "idempotency_key": self.idempotency_key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What workers were given to run, and what NoETL took of it."""

    begun: int
    """Attempts at commands and frames."""
    committed: int
    """Outcomes that the log has taken: one for each call, item and frame."""
    doubled: tuple[str, ...]
    """Calls of which it has taken more than one: never."""
    repeated: tuple[RepeatedCall, ...]


def calls(events: Sequence[Recorded]) -> Calls:
    """Of one execution; internal commands have no effects and are left out."""
    places = Places(events)
    begun: defaultdict[Place, set[str]] = defaultdict(set)
    frames: defaultdict[str, set[int]] = defaultdict(set)
    taken: defaultdict[str, int] = defaultdict(int)
    for one in events:
        match one.content:
            case CommandStarted(command_id=command_id) if not _is_internal(places, command_id):
                begun[places.commands[command_id]].add(command_id)
            case CallDone(command_id=command_id) | CallFailed(command_id=command_id):
                if not _is_internal(places, command_id):
                    taken[f"call {places.commands[command_id]}"] += 1
            case FrameStarted(frame_id=frame_id, attempt=attempt):
                frames[frame_id].add(attempt)
            case FrameCommitted(frame_id=frame_id):
                taken[f"frame {places.frame(frame_id)}"] += 1
    execution_id = events[0].envelope.execution_id
    return Calls(
        begun=_total(begun.values()) + _total(frames.values()),
        committed=sum(taken.values()),
        doubled=tuple(sorted(name for name, times in taken.items() if times > 1)),
        repeated=(
            *(_repeated(execution_id, place, len(ids)) for place, ids in begun.items() if len(ids) > 1),
            *(
                RepeatedCall(
                    call=f"frame {places.frame(frame_id)}",
                    attempts=len(attempts),
                    idempotency_key=f"{places.frame_effects(execution_id, frame_id)}/<row>",
                )
                for frame_id, attempts in frames.items()
                if len(attempts) > 1
            ),
        ),
    )


def _is_internal(places: Places, command_id: str) -> bool:
    return command_id not in places.commands or places.commands[command_id].internal


def _repeated(execution_id: int, place: Place, attempts: int) -> RepeatedCall:
    key = effect_key(execution_id=execution_id, step=place.step, activation=place.activation, index=place.index)
    return RepeatedCall(call=str(place), attempts=attempts, idempotency_key=key)


def _total(groups: Iterable[set[str]] | Iterable[set[int]]) -> int:
    return sum(map(len, groups))
