"""Has deadlines that have passed recorded; the log refuses whatever the list of candidates got wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from noetl_core.append import Fence
from noetl_core.errors import AlreadyExists, Conflict, NoetlError, NotFound, Rejected
from noetl_core.ports.deadlines import Deadlines, LateExecution, LateExecutions
from noetl_core.ports.event_log import Scope
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import span

from noetl_reaper.application.election import Election
from noetl_reaper.telemetry import ReaperMetrics

logger = get_logger()

PAGE: Final = 1000

CASCADE_REASON: Final = "an execution above it was cancelled"

FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
"""Looks are frequent: what nobody can answer for is not asked for in each of them."""

REFUSALS: Final = (Conflict, Rejected, AlreadyExists, NotFound)
"""It ended in time, somebody was first, or it is too early: all of it as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patience:
    """An execution that could not be told: when it is tried again, and how long it waits then."""

    until: float
    seconds: float


def _longer(waits: _Patience | None, *, now: float) -> _Patience:
    seconds = min(waits.seconds * 2, MAX_PAUSE_SECONDS) if waits else FIRST_PAUSE_SECONDS
    return _Patience(until=now + seconds, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSweep:
    """What one look led to, in executions."""

    found: int
    passed: int
    void: int
    refused: int
    failed: int


class Families(Protocol):
    """Ends executions with their descendants; served by api."""

    async def cancel(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        reason: str = "",
        cascade: bool = True,
        fence: Fence | None = None,
    ) -> object:
        """Safe to repeat; ends when the fence does."""
        ...


class PassDeadlines:
    """Has the log told of deadlines: each passes once, under a guard, and only while this reaper is elected."""

    def __init__(
        self,
        late: LateExecutions,
        deadlines: Deadlines,
        families: Families,
        *,
        election: Election,
        reclaimer: str,
        concurrency: int,
        metrics: ReaperMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._late = late
        self._deadlines = deadlines
        self._families = families
        self._election = election
        self._reclaimer = reclaimer
        self._slots = asyncio.Semaphore(concurrency)
        self._metrics = metrics
        self._clock = clock
        self._patience: dict[int, _Patience] = {}

    async def __call__(self, fence: Fence) -> DeadlineSweep:
        """Look once, and tell every late execution so; raises when nobody can say which are late."""
        outcomes: Counter[str] = Counter()
        seen: set[int] = set()
        found, token = 0, ""
        while True:  # Page by page, so that one that cannot be told hides none of the others.
            page = await self._late.passed_deadlines(limit=PAGE, page_token=token)
            found += len(page.executions)
            seen.update(one.execution_id for one in page.executions)
            outcomes.update(await asyncio.gather(*(self._tell(one, fence) for one in page.executions)))
            token = page.next_page_token
            if not token or outcomes["deposed"]:
                break
        self._patience = {one: waits for one, waits in self._patience.items() if one in seen}
        self._metrics.late.set(found)
        return DeadlineSweep(
            found=found,
            passed=outcomes["passed"],
            void=outcomes["void"],
            refused=outcomes["refused"] + outcomes["deposed"],
            failed=outcomes["failed"],
        )

    async def _end_family(self, late: LateExecution, fence: Fence) -> str:
        """Whoever cancelled it was interrupted: the same request again goes on where it was."""
        scope = Scope(tenant_id=late.tenant_id, organization_id=late.organization_id)
        await self._families.cancel(scope, late.execution_id, reason=CASCADE_REASON, fence=fence)
        self._metrics.cascades.inc()
        logger.info("reaper.cascaded", execution_id=str(late.execution_id))
        return "passed"

    async def _tell(self, late: LateExecution, fence: Fence) -> str:
        facts = {"execution_id": str(late.execution_id), "deadline": late.deadline.isoformat()}
        waits = self._patience.get(late.execution_id)
        if waits is not None and self._clock() < waits.until:
            return "failed"
        async with self._slots:
            with span("reaper.deadline", attributes={"noetl.execution_id": str(late.execution_id)}):
                try:
                    # One that has ended closes its loops when its planner looks at it.
                    recorded = await self._deadlines.pass_deadlines(
                        late.execution_id, through=late.deadline, reclaimer=self._reclaimer, fence=fence
                    )
                    if late.cascades and recorded.cascades:
                        return await self._end_family(late, fence)
                except REFUSALS as exc:
                    self._metrics.refused.labels(exc.code).inc()
                    logger.debug("reaper.deadline_refused", **facts, code=exc.code, reason=exc.message)
                    return "deposed" if self._election.ended_by(exc) else "refused"
                except NoetlError as exc:
                    self._patience[late.execution_id] = _longer(waits, now=self._clock())
                    self._metrics.failures.labels(exc.code).inc()
                    logger.warning("reaper.deadline_failed", **facts, code=exc.code, reason=exc.message)
                    return "failed"
        self._patience.pop(late.execution_id, None)
        if not recorded.passed:  # The projection has not caught up with what ended in time.
            return "void"
        self._metrics.deadlines_passed.inc(recorded.passed)
        logger.info("reaper.deadline_passed", **facts, passed=recorded.passed)
        return "passed"
