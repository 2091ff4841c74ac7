"""An execution and everything below it, watched from the first event to the last, through every restart of api."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from noetl_contracts.clients import EventLogClient
from noetl_core.children.events import ChildStarted
from noetl_core.envelope import StoredEvent
from noetl_core.likeness.places import Places
from noetl_core.recorded import Recorded, record

from noetl_cli.follow.watching import watch_through_outages

ROOT = ""
"""The place of the execution that was started; those of children say where they were called."""
_BEATS = ("command.heartbeat", "frame.heartbeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An event that was seen in the log, and when, by the monotonic clock."""

    place: str
    number: int
    """Its number among those of its execution that are no heartbeats and no checkpoints."""
    event: Recorded
    at: float


Told = Callable[[Sequence[Seen]], None]
"""Told of all that one look at the log has shown."""


class Family:
    """The histories of a run, by place."""

    def __init__(self, log: EventLogClient, told: Told, *, patience_seconds: float) -> None:
        self._log = log
        self._told = told
        self._patience_seconds = patience_seconds
        self._tasks: asyncio.TaskGroup | None = None
        self.histories: dict[str, list[StoredEvent]] = {}
        self.executions: dict[str, int] = {}

    async def watch(self, execution_id: int) -> Mapping[str, Sequence[StoredEvent]]:
        """Returns when the execution and all below it have ended."""
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._follow(ROOT, execution_id))
        return self.histories

    async def _follow(self, place: str, execution_id: int) -> None:
        history = self.histories.setdefault(place, [])
        self.executions[place] = execution_id
        places = Places()
        number = 0
        async for batch in watch_through_outages(self._log, execution_id, patience_seconds=self._patience_seconds):
            now = time.monotonic()
            seen: list[Seen] = []
            for stored in batch:
                history.append(stored)
                one = record(stored)
                places.take(one)
                if isinstance(one.content, ChildStarted):
                    self._follow_child(place, one.content, places)
                if is_fact(one.envelope.event_type):
                    number += 1
                    seen.append(Seen(place=place, number=number, event=one, at=now))
            self._told(seen)

    def _follow_child(self, parent: str, child: ChildStarted, places: Places) -> None:
        caller = places.commands.get(child.command_id)
        where = f"{parent}/{caller or child.step or 'outside'}:{child.path}"
        number = sum(known == where or known.startswith(f"{where}~") for known in self.executions)
        place = f"{where}~{number + 1}" if number else where
        self.executions[place] = int(child.child_execution_id)
        if self._tasks is not None:
            self._tasks.create_task(self._follow(place, int(child.child_execution_id)))


def is_fact(event_type: str) -> bool:
    """Whether it is there in every run; heartbeats and checkpoints come when time has passed."""
    return event_type not in _BEATS and not event_type.startswith("checkpoint.")
