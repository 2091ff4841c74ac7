"""Tells where the result of a step came from."""

from __future__ import annotations

from noetl_core.errors import InvalidInput, LocatorInvalid, NotFound
from noetl_core.ids import parse_id
from noetl_core.lineage import Trace, TracedResult
from noetl_core.locator import Locator, parse
from noetl_core.ports.event_log import Scope
from noetl_core.ports.lineage import MAX_TRACE, Lineage
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
        visible = visible_scope(caller, scope)
        trace = await self._lineage.trace(visible, execution_id, step, at_version=at_version)
        if not trace.results:
            raise NotFound("result of step", step, code="execution.result_not_found")
        while not trace.truncated:
            earlier = await self._taken_over(visible, trace.results[-1])
            if not earlier.results:
                break
            results = (*trace.results, *earlier.results)
            trace = Trace(results=results[:MAX_TRACE], truncated=earlier.truncated or len(results) > MAX_TRACE)
        return trace

    async def _taken_over(self, scope: Scope | None, last: TracedResult) -> Trace:
        """A redriven execution has results of another one: what they were made from is told there."""
        parent = _result_locator(last.parent_ref_id)
        if parent is None or _execution_of(last.ref_id) == parent.value("execution"):
            return Trace(results=())
        try:
            other = parse_id(parent.value("execution") or "", what="execution_id")
            found = await self._lineage.find(scope, other, str(parent))
            if found is None:
                return Trace(results=())
            return await self._lineage.trace(scope, other, found.step, at_version=found.stream_version)
        except (NotFound, InvalidInput):  # It is no longer kept, or is not what it looks like.
            return Trace(results=())


def _result_locator(ref_id: str | None) -> Locator | None:
    try:
        locator = parse(ref_id or "")
    except LocatorInvalid:
        return None
    return locator if locator.kind == "result" else None


def _execution_of(ref_id: str) -> str | None:
    """Of a result, or of a loop."""
    try:
        return parse(ref_id).value("execution")
    except LocatorInvalid:
        return None
