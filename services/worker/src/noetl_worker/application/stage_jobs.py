"""The jobs of a stage on Spark: which of their slots they have, and which of their tasks are of no use any more.

A task that stands still cannot say so: the log does. Once nobody holds a frame under the name of a task, and it was
to begin none any more, whatever the task does counts for nothing, and its seat is for others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from noetl_core.ports.commands import CommandKey

from noetl_worker.application.frame_work import slot_key

LATE_SECONDS: Final = 3.0
"""After its time slice, a job that still runs is waited for no longer: it has a frame that lasts, or stands still."""
LOST_SECONDS: Final = 10.0
"""A slot that had a frame of the job and has none any more is left, unless its task ends by itself until then."""
UNSEEN_SECONDS: Final = 60.0
"""The same of a slot that was never seen to have one: a process that is slow to start has claimed none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHint:
    """A slot of a stage that could have a frame, and where its frames run."""

    execution_id: int
    stage_id: str
    slot: int
    engine: str = ""
    step: str = ""
    tenant_id: str = ""
    organization_id: str = ""

    @property
    def key(self) -> CommandKey:
        """The slot, as something to claim."""
        return slot_key(self.execution_id, stage_id=self.stage_id, slot=self.slot)


@dataclass(slots=True, kw_only=True, eq=False)
class StageJob:
    """Tasks that were given slots. Times are those of the loop's clock."""

    call_id: str
    owner: str
    """Begins the names under which its tasks claim frames."""
    given: frozenset[int]
    slots: set[int]
    """Those of them that nobody else is given."""
    slice_seconds: float
    late_at: float = math.inf
    """Not before its tasks have seats: those that wait for them are not late."""
    _seen: set[int] = field(default_factory=set)
    _without: dict[int, float] = field(default_factory=dict)
    """Since when the log has no frame of this job at a slot."""

    def begin(self, now: float) -> None:
        """Its tasks have seats from here on."""
        self.late_at = now + self.slice_seconds + LATE_SECONDS

    def end(self) -> None:
        """Its tasks have ended: there is nobody left to be late."""
        self.late_at = math.inf

    def is_late(self, now: float) -> bool:
        """Whether none of its tasks begins a frame any more."""
        return self.late_at <= now

    def heed(self, holders: Mapping[int, str], now: float) -> None:
        """What the log says about who has the slots of the stage."""
        for slot in self.given:
            if holders.get(slot, "").startswith(f"{self.owner}-"):
                self._seen.add(slot)
                self._without.pop(slot, None)
            else:
                self._without.setdefault(slot, now)

    def left(self, now: float) -> frozenset[int]:
        """Slots at which it has had no frame for so long that nothing comes of them."""
        return frozenset(
            slot
            for slot, since in self._without.items()
            if now - since >= (LOST_SECONDS if slot in self._seen else UNSEEN_SECONDS)
        )


@dataclass(slots=True, kw_only=True, eq=False)
class StageSlots:
    """A stage of which slots are here."""

    first: StageHint
    waiting: set[int] = field(default_factory=set)
    jobs: dict[asyncio.Task[set[int]], StageJob] = field(default_factory=dict)
    hinted: set[int] = field(default_factory=set)
    """Slots of jobs that somebody could have all the same, as the planner says."""
    looks_at: float = 0.0
    """When to look into the log again."""
    task: asyncio.Task[None] | None = None

    @property
    def running(self) -> set[int]:
        """Slots that jobs have."""
        return {slot for job in self.jobs.values() for slot in job.slots}

    def may_begin(self, now: float) -> bool:
        """Whether what waits is for another job: those that run begin no frames any more."""
        return bool(self.waiting) and all(job.is_late(now) for job in self.jobs.values())

    def let_go(self, now: float) -> None:
        """Slots that late jobs have, and the log does not know of, are free."""
        for job in self.jobs.values():
            if job.is_late(now):
                free = job.slots & self.hinted
                job.slots -= free
                self.waiting |= free
                self.hinted -= free

    def end(self, task: asyncio.Task[set[int]]) -> None:
        """A job has ended, and says which slots are to be taken up again; one that was given up cannot."""
        job = self.jobs.pop(task)
        self.waiting |= (self.hinted if task.cancelled() else task.result()) & job.slots
        self.hinted -= job.slots
