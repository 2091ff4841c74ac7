"""Telling the owner of an execution what is being committed, ahead of the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from noetl_core.envelope import StoredEvent


class Notices(Protocol):
    """A short cut, and nothing to rely on: what is told here comes by the bus too, once it stands in the log.

    If that comes to nothing, no execution will ever have this id: what was told is the truth, or about nothing.
    """

    async def notice(self, execution_id: int, events: Sequence[StoredEvent], *, workload: bytes = b"") -> None:
        """Tell the owner, with the bytes of the variables if they are at hand.

        Raises `NotOwner` or `Unavailable` if there is none to be told.
        """
        ...
