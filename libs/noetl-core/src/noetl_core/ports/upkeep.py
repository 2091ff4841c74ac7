"""What an open part needs now and then to stay tidy; whoever opened it has that done, and watched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Something to do again and again, while the part is open; what fails once is made up for the next time."""

    name: str
    every_seconds: float
    once: Callable[[], Awaitable[object]]


Keep = Callable[[Upkeep], object]
"""Takes it over; called while the part is opened."""


def leave_untidy(upkeep: Upkeep) -> None:
    """For parts that are open for a moment only."""
