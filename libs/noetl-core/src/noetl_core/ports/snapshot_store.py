"""Snapshots as their only writer sees them: droppable, and never asked whether they are right."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from noetl_core.ports.event_log import Scope
from noetl_core.replay.snapshots import Rules, Snapshot


class SnapshotStore(Protocol):
    """Keeps snapshots by execution and position."""

    async def find(self, scope: Scope | None, execution_id: int, *, at_or_below: int, rules: Rules) -> Snapshot | None:
        """The newest that was made by these rules; None if there is none for this scope."""
        ...

    async def part(self, snapshot: Snapshot, number: int) -> bytes | None:
        """One part of its body, from 0; None if it is gone."""
        ...

    async def positions(self, execution_id: int, *, rules: Rules) -> list[int]:
        """Of all snapshots of an execution that were made by these rules."""
        ...

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], *, keep: Collection[int]) -> bool:
        """Store it whole, and drop all others of its execution that are not at these positions or of other rules.

        Returns false if the same is there already.
        """
        ...

    async def drop(self, snapshot: Snapshot) -> None:
        """It turned out to be of no use."""
        ...
