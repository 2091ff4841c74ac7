"""The in-memory twin of the routing snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl_core.append import Fence
from noetl_core.errors import Fenced, InvalidInput, NoetlError
from noetl_core.routing_snapshots import RoutingSnapshot

from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases


class InMemoryRoutingSnapshots:
    """By execution, beside a log and its leases; `kept` is open to tests, which may do to it what nobody should."""

    def __init__(self, log: InMemoryEventLog, leases: InMemoryShardLeases) -> None:
        self.kept: dict[int, RoutingSnapshot] = {}
        self.asked = 0
        """How often somebody looked for one."""
        self.failure: NoetlError | None = None
        self._log = log
        self._leases = leases

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """The one that is kept."""
        self.asked += 1
        self._check()
        return self.kept.get(execution_id)

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """Put it in the place of an older one."""
        self._check()
        current = self._leases.epoch(fence.role, fence.shard)
        if current != fence.epoch:
            raise Fenced(role=fence.role, shard=fence.shard, epoch=fence.epoch, current=current)
        stream = self._log.streams.get(snapshot.execution_id)
        if stream is None:
            return False
        head = stream.head
        if head.shard != fence.shard:
            raise InvalidInput(f"fence of shard {fence.shard} given for an execution of another shard")
        if head.terminal or head.version < snapshot.stream_version:
            return False
        known = self.kept.get(snapshot.execution_id)
        if known is not None and snapshot.stream_version < known.stream_version <= head.version:
            return False
        self.kept[snapshot.execution_id] = snapshot
        return True

    async def drop_ended(self) -> int:
        """Drop those that nobody will ask for."""
        self._check()
        streams = self._log.streams
        over = [one for one in self.kept if one not in streams or streams[one].head.terminal]
        for execution_id in over:
            del self.kept[execution_id]
        return len(over)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


async def at_once(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """In the place of a thread, for those whose time is not real."""
    return work(*args, **options)
