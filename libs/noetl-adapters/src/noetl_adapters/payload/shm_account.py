"""Who has room in a node's shared memory: decided from the directory alone, by whoever holds its lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from noetl_adapters.payload.shm_directory import Entry, NodeDirectory

MAX_SEGMENTS: Final = 1024
"""However small they are: all of them are looked at when room is made."""
SECOND_NS: Final = 1_000_000_000
_LONGEST_LEASE_NS: Final = 24 * 3600 * SECOND_NS
"""A lease that ends later was not given by us."""


class SegmentAccount:
    """Counts what is there, and removes what must not or need not be."""

    def __init__(
        self, node: NodeDirectory, *, budget_bytes: int, grace_seconds: float, clock_ns: Callable[[], int]
    ) -> None:
        self._node = node
        self._budget_bytes = budget_bytes
        self._grace_ns = int(grace_seconds * SECOND_NS)
        self._clock_ns = clock_ns

    def is_over(self, lease_end_ns: int) -> bool:
        """Whether lease and grace period have passed."""
        now = self._clock_ns()
        return not now - self._grace_ns < lease_end_ns <= now + _LONGEST_LEASE_NS

    def tidied(self) -> list[Entry]:
        """What is left when everything is gone whose time is over or whose writer is dead."""
        left = []
        for entry in self._node.entries():
            if self._node.is_abandoned(entry.name) if entry.is_temporary else self.is_over(entry.lease_end_ns):
                self._node.remove(entry.name)
            else:
                left.append(entry)
        return left

    def make_room(self, entries: Sequence[Entry], size: int) -> int | None:
        """Remove as little as is needed, the longest unused first, and nothing where that is not enough.

        Returns how many bytes there will be, None if there is no room. Nothing that is leased is ever removed.
        """
        used, count, now = sum(entry.size for entry in entries), len(entries), self._clock_ns()
        unleased = [entry for entry in entries if not entry.is_temporary and entry.lease_end_ns <= now]
        leaving = []
        for entry in sorted(unleased, key=lambda entry: entry.lease_end_ns):
            if used + size <= self._budget_bytes and count < MAX_SEGMENTS:
                break
            leaving.append(entry.name)
            used, count = used - entry.size, count - 1
        if used + size > self._budget_bytes or count >= MAX_SEGMENTS:
            return None
        for name in leaving:
            self._node.remove(name)
        return used + size
