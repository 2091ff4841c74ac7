"""What goes wrong in one history: single faults, each placed by number, so that any of them can be left out."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong."""

    CALL_LOST = "call lost"
    """It never arrives; the caller waits in vain."""
    ANSWER_LOST = "answer lost"
    """It is done, and the caller does not hear of it."""
    CALL_LATE = "call late"
    """It is done after the caller has given up."""
    CALL_DOUBLED = "call doubled"
    CALL_SLOW = "call slow"
    MESSAGE_LOST = "message lost"
    MESSAGE_DOUBLED = "message doubled"
    MESSAGE_LATE = "message late"
    KILL = "kill"
    STOP = "stop"
    """As SIGSTOP does it: for longer than any lease, sometimes."""
    WIPE = "wipe"
    """A planner or projector forgets all that it need not know."""
    DEPOSE = "depose"
    """A planner, projector or reaper loses its shards to another owner, and hears of it only when it asks again."""


OF_CALLS = (Kind.CALL_LOST, Kind.ANSWER_LOST, Kind.CALL_LATE, Kind.CALL_DOUBLED, Kind.CALL_SLOW)
OF_MESSAGES = (Kind.MESSAGE_LOST, Kind.MESSAGE_DOUBLED, Kind.MESSAGE_LATE)
OF_PROCESSES = (Kind.KILL, Kind.STOP, Kind.WIPE, Kind.DEPOSE)


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """The fault of the nth call, of the nth message, or before the nth step of the loop."""

    kind: Kind
    place: int
    seconds: float = 0.0
    """How late, how long, or until it is started again."""
    target: str = ""

    def __str__(self) -> str:
        unit = "call" if self.kind in OF_CALLS else "message" if self.kind in OF_MESSAGES else "step"
        whom = f" of {self.target}" if self.target else ""
        return f"{self.kind.value}{whom} at {unit} {self.place} ({self.seconds:.2f} s)"


class Faults:
    """Looks faults up by their place; those that have happened are remembered."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.planned = tuple(faults)
        self.calls = {fault.place: fault for fault in self.planned if fault.kind in OF_CALLS}
        self.messages = {fault.place: fault for fault in self.planned if fault.kind in OF_MESSAGES}
        self.processes: dict[int, list[Fault]] = {}
        for fault in self.planned:
            if fault.kind in OF_PROCESSES:
                self.processes.setdefault(fault.place, []).append(fault)


def draw_faults(chance: random.Random, *, processes: list[str], calls: int, messages: int, steps: int) -> list[Fault]:
    """A bad day: some of everything, often where it hurts; now and then only one kind of it."""
    share = chance.choice((0.3, 1.0, 1.0, 2.0))
    faults: list[Fault] = []
    for _ in range(round(chance.randrange(8) * share)):
        kind = chance.choice(OF_CALLS)
        faults.append(Fault(kind, chance.randrange(calls), chance.choice((0.5, 3.0, 6.0, 12.0)) * chance.random()))
    for _ in range(round(chance.randrange(8) * share)):
        kind = chance.choice((Kind.MESSAGE_LOST, *OF_MESSAGES))
        faults.append(Fault(kind, chance.randrange(messages), 6.0 * chance.random()))
    for _ in range(round(chance.randrange(5) * share)):
        kind = chance.choice((Kind.KILL, Kind.KILL, Kind.STOP, Kind.WIPE, Kind.DEPOSE))
        seconds = chance.choice((0.2, 2.0, 9.0)) * (0.5 + chance.random())
        owners = [name for name in processes if name.startswith(("planner", "projector"))]
        elected = [name for name in processes if name.startswith("reaper")]
        targets = {Kind.WIPE: owners, Kind.DEPOSE: owners + elected}
        target = chance.choice(targets.get(kind, processes))
        faults.append(Fault(kind, chance.randrange(steps), seconds, target))
    return sorted(faults)
