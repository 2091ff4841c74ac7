"""Routing state that planners leave for the next owner of a shard: stored as it is, and never read here."""

from __future__ import annotations

from typing import Final

from noetl_core.append import Fence
from noetl_core.canonical import sha256_hex
from noetl_core.errors import InvalidInput
from noetl_core.ports.routing_snapshots import RoutingSnapshotStore
from noetl_core.routing_snapshots import MAX_BYTES, RoutingSnapshot
from noetl_servicekit.callers import Caller, Role

OWNERS: Final = "planner"
"""The role whose shards these are."""


class Routing:
    """For services alone: it holds what the log holds, of every tenant."""

    def __init__(self, snapshots: RoutingSnapshotStore) -> None:
        self._snapshots = snapshots

    async def find(self, caller: Caller, execution_id: int) -> RoutingSnapshot | None:
        """What is kept of an execution."""
        caller.require(Role.SERVICE)
        return await self._snapshots.find(execution_id)

    async def keep(self, caller: Caller, snapshot: RoutingSnapshot, *, fence: Fence | None) -> bool:
        """Keep it, if its planner still owns the shard."""
        caller.require(Role.SERVICE)
        if fence is None or fence.role != OWNERS:
            raise InvalidInput("routing state is kept under the fence of a planner")
        if snapshot.stream_version < 1:
            raise InvalidInput("routing state has the version of an event")
        if len(snapshot.body) > MAX_BYTES:
            raise InvalidInput(f"routing state of {len(snapshot.body)} bytes is more than {MAX_BYTES}")
        if sha256_hex(snapshot.body) != snapshot.body_sha256:
            raise InvalidInput("the body of the routing state is not the one that was sealed")
        return await self._snapshots.keep(snapshot, fence=fence)
