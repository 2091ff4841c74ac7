"""Tells where the result of a step came from."""

from __future__ import annotations

from noetl_core.errors import InvalidInput, NotFound
from noetl_core.lineage import Trace
from noetl_core.ports.event_log import Scope
from noetl_core.ports.lineage import Lineage
from noetl_servicekit.callers import Caller

from noetl_api.application.scopes import visible_scope


class TraceResult:
    """Whoever may see the history may see what came from what."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    async def __call__(
        self, caller: Caller, scope: Scope | None, execution_id: int, step: str, *, at_version: int = 0
    ) -> Trace:
        """The chain of a step's last result, up to a version if one is named."""
        if at_version < 0:
            raise InvalidInput("versions count from 1")
        trace = await self._lineage.trace(visible_scope(caller, scope), execution_id, step, at_version=at_version)
        if not trace.results:
            raise NotFound("result of step", step, code="execution.result_not_found")
        return trace
