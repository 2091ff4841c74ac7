"""What projections hold as it is stored, for whoever compares it with the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from noetl_core.errors import InvalidInput
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LiveExecutions, LivePage, LiveRows, RowPage, RowPlace
from noetl_servicekit.callers import Caller

from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import visible_scope

MAX_PAGE: Final = 1000
MAX_WANTED: Final = 200
MAX_WAIT_SECONDS: Final = 30.0


class ListRows:
    """Asks projectors; the token decides whose rows."""

    def __init__(self, rows: LiveRows) -> None:
        self._rows = rows

    async def __call__(
        self, caller: Caller, scope: Scope | None, wanted: Mapping[int, int], *, token: str, wait_seconds: float
    ) -> RowPage:
        """One page; what belongs to others is left out."""
        if not 0 < len(wanted) <= MAX_WANTED:
            raise InvalidInput(f"rows are listed of 1 to {MAX_WANTED} executions, not of {len(wanted)}")
        if not 0 <= wait_seconds <= MAX_WAIT_SECONDS:
            raise InvalidInput(f"rows are waited for up to {MAX_WAIT_SECONDS:g} seconds, not {wait_seconds:g}")
        return await self._rows.list_rows(
            visible_scope(caller, scope), wanted, after=RowPlace.from_token(token), wait_seconds=wait_seconds
        )


class ListLive:
    """Asks projectors which executions have a row; the token decides whose."""

    def __init__(self, executions: LiveExecutions) -> None:
        self._executions = executions

    async def __call__(self, caller: Caller, scope: Scope | None, *, after: int, size: int) -> LivePage:
        """One page, by execution id."""
        limit = page_size(size, default=MAX_PAGE, maximum=MAX_PAGE)
        return await self._executions.list_live(visible_scope(caller, scope), after=after, limit=limit)
