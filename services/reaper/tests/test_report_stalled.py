"""A reaper tells of executions that can never go on, once for each reason, and counts those that are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import structlog
from noetl_core.errors import NotFound
from noetl_core.ports.event_log import Scope
from noetl_core.ports.quiet import QuietExecution, QuietPage
from noetl_core.why import Reason, ReasonKind
from noetl_reaper.application import report_stalled
from noetl_reaper.application.report_stalled import ReportStalled
from noetl_reaper.telemetry import ReaperMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import NOON

NO_WORKER = Reason(kind=ReasonKind.UNCLAIMED, text="no worker of this pool", step="s", details={"workers": 0})
SOME_WORKER = Reason(kind=ReasonKind.UNCLAIMED, text="all busy", step="s", details={"workers": 2})
UNDECIDED = Reason(kind=ReasonKind.PLANNER, text="nothing is under way")
RUNNING = Reason(kind=ReasonKind.RUNNING, text="runs")


@dataclass
class Explanation:
    reasons: Sequence[Reason]


@dataclass
class Installation:
    """What is quiet, and what is said of it."""

    waits_for: dict[int, Sequence[Reason]] = field(default_factory=dict)

    async def quiet_executions(self, *, quiet_seconds: float, limit: int = 100, page_token: str = "") -> QuietPage:
        ids = [one for one in sorted(self.waits_for) if one > int(page_token or 0)]
        page = tuple(
            QuietExecution(execution_id=one, tenant_id="t", organization_id="o", path="p", quiet_since=NOON)
            for one in ids[:limit]
        )
        return QuietPage(executions=page, next_page_token=str(ids[limit - 1]) if len(ids) > limit else "")

    async def explain(self, scope: Scope | None, execution_id: int) -> Explanation:
        if not self.waits_for[execution_id]:
            raise NotFound("execution", execution_id)
        return Explanation(self.waits_for[execution_id])


def stalled(metrics: MetricSet, reason: ReasonKind) -> float:
    return metrics.value("noetl_reaper_stalled_executions", reason=reason.value)


async def test_what_can_never_go_on_is_told_once_and_counted() -> None:
    installation = Installation(
        {1: [NO_WORKER], 2: [SOME_WORKER], 3: [UNDECIDED], 4: [NO_WORKER, RUNNING], 5: [], 6: [NO_WORKER]}
    )
    metrics = MetricSet()
    look = ReportStalled(installation, installation, quiet_seconds=60, metrics=ReaperMetrics(metrics))

    with structlog.testing.capture_logs() as logs:
        assert (await look(), await look()) == (3, 3)
        counted = stalled(metrics, ReasonKind.UNCLAIMED), stalled(metrics, ReasonKind.PLANNER)
        installation.waits_for = {1: [UNDECIDED]}
        await look()

    told = [(line["execution_id"], line["kind"]) for line in logs if line["event"] == "reaper.stalled"]
    assert told == [("1", "unclaimed"), ("3", "planner"), ("6", "unclaimed"), ("1", "planner")]
    assert counted == (2.0, 1.0)
    assert (stalled(metrics, ReasonKind.UNCLAIMED), stalled(metrics, ReasonKind.PLANNER)) == (0.0, 1.0)


async def test_a_look_goes_on_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_stalled, "PAGE", 2)
    monkeypatch.setattr(report_stalled, "MAX_ASKED", 4)
    installation = Installation({one: [NO_WORKER] for one in range(1, 8)})
    metrics = MetricSet()
    look = ReportStalled(installation, installation, quiet_seconds=60, metrics=ReaperMetrics(metrics))

    first = await look()
    counted_after_first = stalled(metrics, ReasonKind.UNCLAIMED)
    second = await look()

    assert (first, second) == (4, 3)
    assert (counted_after_first, stalled(metrics, ReasonKind.UNCLAIMED)) == (0.0, 7.0)
