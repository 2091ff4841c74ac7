"""Where to kill: each service at each boundary between what the log took at once, or some of these by a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent

from noetl_cli.chaos.family import is_fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The moment at which an append has been committed, and the next one has not."""

    place: str
    number: int
    """How many events the execution has then, heartbeats and checkpoints left out."""
    after: str
    """The last of them, as the undisturbed run has it."""

    def __str__(self) -> str:
        return f"{self.place or '·'} {self.number} {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One process to kill at one boundary."""

    service: str
    boundary: Boundary

    def to_json(self) -> JsonObject:
        """For whoever reads it with a program."""
        where: JsonObject = {"execution": self.boundary.place, "event": self.boundary.number}
        return {"service": self.service, **where, "after": self.boundary.after}


def boundaries(histories: Mapping[str, Sequence[StoredEvent]]) -> list[Boundary]:
    """Of a run: events of one append have one time in the log, and nobody sees one without the others."""
    return [one for place, events in histories.items() for one in _of(place, events)]


def kills(services: Sequence[str], where: Sequence[Boundary], *, sample: int | None, seed: int) -> list[Kill]:
    """All of them in the order of the log, or some by chance; the same seed draws the same ones."""
    every = [Kill(service=service, boundary=boundary) for boundary in where for service in services]
    if sample is None or sample >= len(every):
        return every
    chosen = random.Random(seed).sample(range(len(every)), sample)  # noqa: S311 - repeatable, not secret
    return [every[number] for number in sorted(chosen)]


def _of(place: str, events: Sequence[StoredEvent]) -> Iterator[Boundary]:
    number = 0
    for index, stored in enumerate(events):
        envelope = stored.envelope()
        if not is_fact(envelope.event_type):
            continue
        number += 1
        if index + 1 == len(events) or events[index + 1].ingest_time != stored.ingest_time:
            node = f" {envelope.node_name}" if envelope.node_name else ""
            yield Boundary(place=place, number=number, after=f"{envelope.event_type}{node}")
