"""What replays may begin with instead of the first event: it saves time, and decides nothing."""

from __future__ import annotations

from typing import Protocol

from noetl_core.ports.event_log import Scope
from noetl_core.replay.history import Seed
from noetl_core.replay.snapshots import Rules, Snapshot


class FetchSnapshots(Protocol):
    """Brings snapshots from where they are kept, unproven."""

    async def fetch(
        self, scope: Scope | None, execution_id: int, *, at_or_below: int, rules: Rules
    ) -> tuple[Snapshot, list[bytes]] | None:
        """The newest that these rules have made, with its parts; None if there is none."""
        ...


class Snapshots(Protocol):
    """Finds snapshots that this release could have made itself."""

    async def seed(self, scope: Scope | None, execution_id: int, *, at_or_below: int) -> Seed | None:
        """The newest that fits, proven by its checksum; None if there is none, or whoever has them is away."""
        ...


class NoSnapshots:
    """Every replay begins at the start."""

    async def seed(self, scope: Scope | None, execution_id: int, *, at_or_below: int) -> Seed | None:
        """There is none."""
        return None
