"""A command is one attempt at one activation of a step, held by at most one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any

from noetl_core.children.state import ParkedCall
from noetl_core.streams.state import Place
from noetl_core.values import dataclass


class CommandStatus(StrEnum):
    """Where an attempt stands. The last four are final."""

    ISSUED = "issued"
    CLAIMED = "claimed"
    STARTED = "started"
    PARKED = "parked"
    """Waits for a child, and holds no worker."""
    RESUMED = "resumed"
    """The child has ended: any worker may claim the attempt again."""
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"
    STOPPED = "stopped"
    """Its activation ended without it."""


_CLAIMABLE = frozenset({CommandStatus.ISSUED, CommandStatus.RESUMED})
_OPEN = _CLAIMABLE | {CommandStatus.CLAIMED, CommandStatus.STARTED, CommandStatus.PARKED}


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
    pipeline: bool = False
    """Whether it was issued as a pipeline, and its facts are told under that node."""
    trace: str = ""
    worker_id: str = ""
    worker_locator: str = ""
    """Where that worker is, if anybody said so."""
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
    deadline: datetime | None = None
    """Until when what it waits for must have come, by PostgreSQL's clock; for one that waits without a worker."""
    parked: ParkedCall | None = None
    """Where the attempt goes on, if it or the one before it was parked."""
    loop_id: str = ""
    loop_index: int | None = None
    """Which item of which loop it runs, if it runs one."""
    stage_id: str = ""
    """The stage that it is about, if it is about one: rows of stages themselves run in frames."""

    @property
    def is_claimable(self) -> bool:
        """Whether a worker may take it now."""
        return self.status in _CLAIMABLE

    streamed: Place = field(default_factory=Place)
    """Up to where its chunks, and those of earlier attempts, have been told."""

    @property
    def is_open(self) -> bool:
        """An attempt counts until it is closed; an expired lease only permits closing it."""
        return self.status in _OPEN

    @property
    def stream_key(self) -> str:
        """Names the chunks of all attempts at the same thing."""
        key = f"{self.step}/{self.activation}"
        return key if self.loop_index is None else f"{key}/{self.loop_index}"

    @property
    def of_command(self) -> dict[str, Any]:
        """What every fact about it says of the command itself: as it was issued, whatever its playbook says."""
        return {"command_id": self.command_id, "step": self.step, "pipeline": self.pipeline or None}

    @property
    def of_item(self) -> dict[str, Any]:
        """What every fact about it says of its item."""
        return {} if self.loop_index is None else {"loop_id": self.loop_id, "loop_iteration_index": self.loop_index}

    def held_by(self, worker_id: str) -> bool:
        """Whether this worker's result counts."""
        return self.is_open and self.worker_id == worker_id
