"""What replays may begin with instead of the first event: it saves time, and decides nothing."""

from __future__ import annotations

from typing import Protocol

from noetl_core.ports.event_log import Scope
from noetl_core.replay.history import Seed


class Snapshots(Protocol):
    """Finds snapshots that this release could have made itself."""

    async def seed(self, scope: Scope | None, execution_id: int, *, at_or_below: int, upcasters: str) -> Seed | None:
        """The newest that fits, proven by its checksum; None if there is none, or whoever has them is away."""
        ...


class NoSnapshots:
    """Every replay begins at the start."""

    async def seed(self, scope: Scope | None, execution_id: int, *, at_or_below: int, upcasters: str) -> Seed | None:
        """There is none."""
        return None
