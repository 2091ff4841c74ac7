"""Tells what an execution waits for, from its state, its playbook and the workers there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from noetl_core.errors import Corrupt, NoetlError, Unavailable
from noetl_core.playbook.graph import Graph, build_graph
from noetl_core.ports.catalog import CatalogStore
from noetl_core.ports.event_log import Scope
from noetl_core.ports.workers import PresentWorker, WorkerPresence
from noetl_core.state_json import read_state
from noetl_core.why import Reason, explain
from noetl_servicekit.callers import Caller

from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.query_executions import QueryExecutions


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What an execution waits for, as of one of its versions."""

    execution_id: int
    status: str
    stream_version: int
    as_of: datetime
    reasons: tuple[Reason, ...]


class ExplainExecution:
    """The more is known, the better the answer; what is away makes it shorter, never wrong."""

    def __init__(
        self,
        *,
        executions: QueryExecutions,
        catalog: CatalogStore,
        parsed: ParsedPlaybooks,
        workers: WorkerPresence,
        clock: Callable[[], datetime],
    ) -> None:
        self._executions = executions
        self._catalog = catalog
        self._parsed = parsed
        self._workers = workers
        self._clock = clock

    async def __call__(self, caller: Caller, scope: Scope | None, execution_id: int) -> Explanation:
        """Who may see an execution may ask."""
        view = await self._executions.get(caller, scope, execution_id)
        try:
            state = read_state(view.state)
        except Corrupt as exc:
            raise Unavailable(f"the state of execution {execution_id} is of another release") from exc
        now = self._clock()
        final = state.execution.status.is_final
        reasons = explain(
            state,
            now=now,
            graph=None if final else await self._graph(state.execution.catalog_id),
            workers=None if final else await self._present(),
        )
        return Explanation(
            execution_id=execution_id,
            status=view.status,
            stream_version=view.stream_version,
            as_of=now,
            reasons=reasons,
        )

    async def _graph(self, catalog_id: str) -> Graph | None:
        if not catalog_id:
            return None
        try:
            return build_graph(await self._parsed.of(await self._catalog.get(None, catalog_id=catalog_id)))
        except NoetlError:
            return None

    async def _present(self) -> Sequence[PresentWorker] | None:
        try:
            return await self._workers.list()
        except NoetlError:
            return None
