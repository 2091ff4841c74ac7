"""Which reaper is at work: the one that holds the only shard of its role, for as long as it does."""

from __future__ import annotations

from typing import Final, Protocol

from noetl_core.append import Fence
from noetl_core.errors import Fenced, NoetlError
from noetl_servicekit.logging import get_logger

logger = get_logger()

ROLE: Final = "reaper"
ONLY_SHARD: Final = 0
"""Whoever has it is at work; the others wait for its lease to end."""


class Ownership(Protocol):
    """What this process holds, as far as it knows."""

    def epoch(self, shard: int) -> int | None:
        """The epoch of a shard that is ours."""
        ...

    def fenced(self, shard: int) -> None:
        """Somebody else owns the shard."""
        ...


class Election:
    """What is asked of planners and api carries the fence under which the look at it began: one that has been deposed
    meanwhile has nothing done, and hears of it."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    def fence(self) -> Fence | None:
        """To begin a look with; None while another one is at work."""
        epoch = self._ownership.epoch(ONLY_SHARD)
        return None if epoch is None else Fence(role=ROLE, shard=ONLY_SHARD, epoch=epoch)

    def ended_by(self, refusal: NoetlError) -> bool:
        """Whether a refusal says that another one was elected: it is believed at once, and asked about."""
        if not isinstance(refusal, Fenced) or refusal.facts.get("role") != ROLE:
            return False
        logger.warning("reaper.deposed", reason=refusal.message)
        if refusal.facts.get("epoch") == str(self._ownership.epoch(ONLY_SHARD)):
            self._ownership.fenced(ONLY_SHARD)  # Not when it was elected again since the look began.
        return True
