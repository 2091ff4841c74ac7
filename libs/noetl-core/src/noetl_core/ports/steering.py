"""Executions as those see them who stop them for a while and let them go on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class SteerAction(StrEnum):
    """What is done to an execution by its planner, because only there it is known what must be held back."""

    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """Where the execution stands after it."""

    stream_version: int
    status: str
    descendants: int = 0
    """How many below it were steered with it."""


class Steering(Protocol):
    """Pauses and resumes executions; repeating either is harmless."""

    async def steer(self, execution_id: int, action: SteerAction, *, by: str, reason: str) -> Steered:
        """Do it; raises `AlreadyTerminal`, or `NotPaused` when an execution is to be resumed that never was paused."""
        ...
