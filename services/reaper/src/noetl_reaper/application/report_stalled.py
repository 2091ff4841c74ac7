"""Tells of executions that can never go on by themselves, with the reason; what is to be done is for people to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from noetl_core.errors import NoetlError
from noetl_core.ports.event_log import Scope
from noetl_core.ports.quiet import QuietExecution, QuietExecutions
from noetl_core.why import Reason, ReasonKind, stalled
from noetl_servicekit.logging import get_logger

from noetl_reaper.telemetry import ReaperMetrics

logger = get_logger()

PAGE: Final = 100
MAX_ASKED: Final = 1_000
"""Of one look; the next one goes on behind them."""


class Explained(Protocol):
    """What somebody says that an execution waits for."""

    @property
    def reasons(self) -> Sequence[Reason]:
        """Most pressing first."""
        ...


class Explains(Protocol):
    """Tells what an execution waits for; served by api."""

    async def explain(self, scope: Scope | None, execution_id: int) -> Explained:
        """Of any tenant."""
        ...


class ReportStalled:
    """Looks at executions in which nothing has happened for a while; each is told once for each reason."""

    def __init__(
        self, quiet: QuietExecutions, explains: Explains, *, quiet_seconds: float, metrics: ReaperMetrics
    ) -> None:
        self._quiet = quiet
        self._explains = explains
        self._quiet_seconds = quiet_seconds
        self._metrics = metrics
        self._known: dict[int, ReasonKind] = {}
        self._seen: dict[int, ReasonKind] = {}
        self._token = ""

    async def __call__(self) -> int:
        """One look, from where the last one stopped; how many of those that it saw are stalled."""
        asked = found = 0
        while asked < MAX_ASKED:
            page = await self._quiet.quiet_executions(
                quiet_seconds=self._quiet_seconds, limit=PAGE, page_token=self._token
            )
            for execution in page.executions:
                found += await self._look_at(execution)
            asked += len(page.executions)
            self._token = page.next_page_token
            if not self._token:
                self._count()
                break
        return found

    async def _look_at(self, execution: QuietExecution) -> bool:
        try:
            explained = await self._explains.explain(None, execution.execution_id)
        except NoetlError as exc:
            logger.debug("reaper.not_explained", execution_id=str(execution.execution_id), reason=exc.message)
            return False
        reason = stalled(explained.reasons)
        if reason is None:
            return False
        self._seen[execution.execution_id] = reason.kind
        if self._known.get(execution.execution_id) is not reason.kind:
            self._known[execution.execution_id] = reason.kind
            logger.warning(
                "reaper.stalled",
                execution_id=str(execution.execution_id),
                tenant_id=execution.tenant_id,
                path=execution.path,
                step=reason.step,
                kind=reason.kind.value,
                reason=reason.text,
                quiet_since=execution.quiet_since.isoformat(),
            )
        return True

    def _count(self) -> None:
        """All of them have been seen: what is not among them goes on, or has ended."""
        counts = Counter(kind.value for kind in self._seen.values())
        for kind in ReasonKind:
            if counts[kind.value] or kind in self._known.values():
                self._metrics.stalled.labels(kind.value).set(counts[kind.value])
        self._known, self._seen = self._seen, {}
