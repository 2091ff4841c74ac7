"""Deadlines as their keeper sees them: which executions have one that has passed, and whom to tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from noetl_core.append import Fence

NOBODY_IN_PARTICULAR: Final = "urn:noetl:reaper"
"""Who gives up frames if whoever asks for it does not say which reaper it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateExecution:
    """An execution whose next deadline has passed: a candidate, checked again when it is told so."""

    execution_id: int
    tenant_id: str
    organization_id: str
    deadline: datetime
    """The earliest of its open deadlines."""
    cascades: bool = False
    """It has ended, and something of it has not: a loop, or descendants that it was cancelled with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatePage:
    """Some late executions, and where to go on; an empty token means that there are no more."""

    executions: tuple[LateExecution, ...]
    next_page_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinesPassed:
    """What was recorded; none if everything had ended in time after all."""

    passed: int
    stream_version: int
    cascades: bool = False
    """It was cancelled, and it is not known that its descendants have ended."""


LatePlace = tuple[datetime, int]
"""Where a listing of late executions goes on: (deadline, execution_id)."""


class LateExecutions(Protocol):
    """Lists candidates by what has been projected."""

    async def passed_deadlines(self, *, limit: int = 100, page_token: str = "") -> LatePage:
        """Executions whose next deadline has passed by the database's clock, longest overdue first."""
        ...


class Deadlines(Protocol):
    """Has passed deadlines recorded, and what follows from them decided."""

    async def pass_deadlines(
        self, execution_id: int, *, through: datetime, reclaimer: str = NOBODY_IN_PARTICULAR, fence: Fence | None = None
    ) -> DeadlinesPassed:
        """Record the open deadlines up to a time, and give up frames in the reclaimer's name.

        Refused (`TooEarly`) before PostgreSQL's clock is there, and (`Fenced`) when the asker's own lease is over.
        """
        ...
