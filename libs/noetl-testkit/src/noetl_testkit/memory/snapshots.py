"""The in-memory twin of the snapshot store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from noetl_core.errors import NoetlError
from noetl_core.ports.event_log import Scope
from noetl_core.replay.snapshots import Rules, Snapshot


class InMemorySnapshots:
    """By execution and position; `stored` is open to tests, which may do to it what nobody should."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], tuple[Snapshot, list[bytes]]] = {}
        self.failure: NoetlError | None = None

    async def find(self, scope: Scope | None, execution_id: int, *, at_or_below: int, rules: Rules) -> Snapshot | None:
        """The newest that was made by these rules."""
        for position in reversed(await self.positions(execution_id, rules=rules)):
            snapshot, _ = self.stored[execution_id, position]
            if position <= at_or_below:
                whose = Scope(tenant_id=snapshot.tenant_id, organization_id=snapshot.organization_id)
                return snapshot if scope in (None, whose) else None
        return None

    async def part(self, snapshot: Snapshot, number: int) -> bytes | None:
        """One part of its body."""
        self._check()
        known = self.stored.get((snapshot.execution_id, snapshot.position))
        if known is None or known[0].checksum != snapshot.checksum or number >= len(known[1]):
            return None
        return known[1][number]

    async def positions(self, execution_id: int, *, rules: Rules) -> list[int]:
        """Of all snapshots that were made by these rules."""
        self._check()
        return sorted(
            position
            for (one, position), (snapshot, _) in self.stored.items()
            if one == execution_id and snapshot.rules == rules
        )

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], *, keep: Collection[int]) -> bool:
        """Store it whole, and drop what it replaces."""
        self._check()
        execution_id, position = snapshot.execution_id, snapshot.position
        for place, (other, _) in list(self.stored.items()):
            if place[0] == execution_id and (other.rules != snapshot.rules or place[1] not in {*keep, position}):
                del self.stored[place]
        if (execution_id, position) in self.stored:
            return False
        self.stored[execution_id, position] = (snapshot, list(parts))
        return True

    async def drop(self, snapshot: Snapshot) -> None:
        """It turned out to be of no use."""
        self._check()
        known = self.stored.get((snapshot.execution_id, snapshot.position))
        if known is not None and known[0].checksum == snapshot.checksum:
            del self.stored[snapshot.execution_id, snapshot.position]

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
