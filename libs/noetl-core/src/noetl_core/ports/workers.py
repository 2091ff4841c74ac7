"""Which workers there are: told by themselves, forgotten when they fall silent, and decisive for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

MAX_WORKERS = 10_000
"""Of one answer; nobody looks at more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRetry:
    """A call that failed, and is tried again as attempt so and so of so many; by the worker's clock."""

    command_id: str
    task: str
    attempt: int
    attempts: int
    next_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker says about itself."""

    worker_id: str
    pool: str = "default"
    locator: str = ""
    slots: int = 1
    busy: int = 0
    kinds: tuple[str, ...] = ()
    version: str = ""
    retries: tuple[WaitingRetry, ...] = ()
    """Calls of its commands that wait to be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentWorker:
    """A worker that was heard of lately."""

    report: WorkerReport
    started_at: datetime
    heard_at: datetime


class WorkerPresence(Protocol):
    """Remembers who reported."""

    async def report(self, report: WorkerReport, *, lease_seconds: float) -> None:
        """This worker is there for so long, unless it reports again."""
        ...

    async def leave(self, worker_id: str) -> None:
        """It is there no longer."""
        ...

    async def list(self, *, pool: str = "") -> Sequence[PresentWorker]:
        """Those who are there, by name."""
        ...
