"""Telling the owner of an execution what was just committed, ahead of the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from noetl_core.envelope import StoredEvent


class Notices(Protocol):
    """A short cut, and nothing to rely on: what is told here comes by the bus too, and stands in the log."""

    async def notice(self, execution_id: int, events: Sequence[StoredEvent], *, workload: bytes = b"") -> None:
        """Tell the owner, with the bytes of the variables if they are at hand.

        Raises `NotOwner` or `Unavailable` if there is none to be told.
        """
        ...
