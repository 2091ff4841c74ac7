"""A command is one attempt at one activation of a step, held by at most one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class CommandStatus(StrEnum):
    """Where an attempt stands. The last three are final."""

    ISSUED = "issued"
    CLAIMED = "claimed"
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"


_OPEN = frozenset({CommandStatus.ISSUED, CommandStatus.CLAIMED, CommandStatus.STARTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One attempt, as the log tells it."""

    command_id: str
    step: str
    activation: int
    attempt: int
    pool: str
    cause_step: str
    status: CommandStatus
    issued_at: datetime
    issued_version: int
    trace: str = ""
    worker_id: str = ""
    claimed_after: str = ""
    """The command with whose completion this one was handed to the same worker."""
    lease_until: datetime | None = None
    aggregate_version: int = 1
    stream_version: int = 0
    ended_at: datetime | None = None
    evaluation: Mapping[str, Any] | None = None
    """What an internal command evaluates for the planner; None for a step's own command."""
    answer: Mapping[str, Any] | None = None
    """The result of an internal command, kept here because it is no step's."""

    @property
    def is_open(self) -> bool:
        """An attempt counts until it is closed; an expired lease only permits closing it."""
        return self.status in _OPEN

    def held_by(self, worker_id: str) -> bool:
        """Whether this worker's result counts."""
        return self.is_open and self.worker_id == worker_id
