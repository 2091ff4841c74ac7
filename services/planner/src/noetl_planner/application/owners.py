"""Where to send a caller whose execution belongs to another planner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noetl_core.errors import NoetlError
from noetl_core.ports.leases import ShardLeases


class Owners:
    """The addresses of all planners by shard, as they were a moment ago; a wrong one only costs a hop."""

    def __init__(self, leases: ShardLeases) -> None:
        self._leases = leases
        self._addresses: dict[int, str] = {}

    def address(self, shard: int) -> str | None:
        """Who owned the shard when last asked."""
        return self._addresses.get(shard)

    async def keep_current(self, *, every_seconds: float, beat: Callable[[], None]) -> None:
        """Ask again and again."""
        while True:
            beat()
            try:
                shards = await self._leases.list_shards("planner")
                self._addresses = {lease.shard: lease.address for lease in shards if lease.instance}
            except NoetlError as exc:
                if not exc.retryable:
                    raise
            await asyncio.sleep(every_seconds)
