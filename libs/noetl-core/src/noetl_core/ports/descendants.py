"""Who stands below an execution."""

from __future__ import annotations

from typing import Protocol


class Descendants(Protocol):
    """Knows heads by their parents, exactly: a child and its parent's `child.started` are one append."""

    async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
        """Descendants that have not ended, those nearest to the execution first.

        Also those below descendants that have ended: an execution may leave children behind that nobody waits for.
        """
        ...

    async def has_children(self, execution_id: int) -> bool:
        """Whether anything was ever started under it."""
        ...
