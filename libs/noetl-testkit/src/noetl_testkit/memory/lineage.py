"""The in-memory twin of lineage: the pure function over the in-memory log."""

from noetl_core.lineage import Trace, TracedResult, follow, result_of
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.lineage import MAX_TRACE


class InMemoryLineage:
    """Port `Lineage`."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def trace(self, scope: Scope | None, execution_id: int, step: str, *, at_version: int = 0) -> Trace:
        """The chain of a step's result."""
        results = await self._results(scope, execution_id)
        return follow(results, step=step, at_version=at_version, limit=MAX_TRACE)

    async def find(self, scope: Scope | None, execution_id: int, ref_id: str) -> TracedResult | None:
        """The last result of this name."""
        results = await self._results(scope, execution_id)
        return next((result for result in reversed(results) if result.ref_id == ref_id), None)

    async def _results(self, scope: Scope | None, execution_id: int) -> list[TracedResult]:
        page = await self._log.read(scope, execution_id, limit=1_000_000)
        return [result for event in page.events if (result := result_of(event)) is not None]
