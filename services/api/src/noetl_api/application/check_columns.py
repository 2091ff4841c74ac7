"""Compares what the log keeps of events for lookups with their bytes, for whoever proves his executions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from noetl_core.errors import InvalidInput
from noetl_core.ports.event_columns import ColumnPage, EventColumns, Place
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller

from noetl_api.application.scopes import visible_scope

MAX_EXECUTIONS: Final = 200


class CheckColumns:
    """The token decides whose."""

    def __init__(self, columns: EventColumns) -> None:
        self._columns = columns

    async def __call__(
        self, caller: Caller, scope: Scope | None, execution_ids: Collection[int], *, after: Place | None
    ) -> ColumnPage:
        """One page; what belongs to others is left out."""
        if not 0 < len(execution_ids) <= MAX_EXECUTIONS:
            raise InvalidInput(f"columns are compared of 1 to {MAX_EXECUTIONS} executions, not of {len(execution_ids)}")
        return await self._columns.check_columns(visible_scope(caller, scope), execution_ids, after=after)
