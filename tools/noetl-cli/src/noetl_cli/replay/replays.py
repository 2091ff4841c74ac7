"""What commands ask of whoever replays histories."""

from __future__ import annotations

from typing import Final, Protocol

from noetl_contracts.clients import ReplayedState
from noetl_core.errors import NotAuthenticated, NotPermitted, Overloaded, Unavailable
from noetl_core.ports.event_log import Scope
from noetl_core.replay.points import Point

FAILURES_OF_ALL: Final = (Unavailable, Overloaded, NotAuthenticated, NotPermitted)
"""What the next history would meet as well; whatever else is raised is about one history."""


class Replays(Protocol):
    """Whoever replays; api, for the command line."""

    async def state(
        self,
        scope: Scope | None,
        execution_id: int,
        point: Point,
        *,
        projection: str = "all",
        resolve_payloads: bool = False,
        from_start: bool = False,
    ) -> ReplayedState:
        """The state at a point."""
        ...
