"""What the owner of a shard leaves for the next one: droppable, and never asked whether it is right."""

from __future__ import annotations

from typing import Protocol

from noetl_core.append import Fence
from noetl_core.routing_snapshots import RoutingSnapshot


class RoutingSnapshots(Protocol):
    """Keeps the newest snapshot of each open execution. All of them may be gone at any time."""

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """The one that is kept, unproven; None if there is none."""
        ...

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """Put it in the place of an older one; raises `Fenced` if the shard has another owner by now.

        Returns false if a newer one is there, the execution has ended, or the log does not reach that far.
        """
        ...


class RoutingSnapshotStore(RoutingSnapshots, Protocol):
    """As whoever stores them sees them."""

    async def drop_ended(self) -> int:
        """Drop those of executions that have ended or are gone; returns how many those were."""
        ...
