"""A reaper tells late executions so, whatever becomes of some of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from noetl_core.errors import AlreadyTerminal, NoetlError, NotFound, TooEarly, Unavailable
from noetl_core.ports.deadlines import DeadlinesPassed, LateExecution, LatePage
from noetl_core.ports.event_log import Scope
from noetl_reaper.application import pass_deadlines
from noetl_reaper.application.pass_deadlines import DeadlineSweep, PassDeadlines
from noetl_reaper.telemetry import ReaperMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import NOON


class Candidates:
    """A projector that lists what the test says."""

    def __init__(self, *execution_ids: int) -> None:
        self.late = tuple(
            LateExecution(
                execution_id=one, tenant_id="t", organization_id="o", deadline=NOON + timedelta(seconds=place)
            )
            for place, one in enumerate(execution_ids)
        )
        self.failure: NoetlError | None = None

    async def passed_deadlines(self, *, limit: int = 100, page_token: str = "") -> LatePage:
        if self.failure is not None:
            raise self.failure
        first = int(page_token or 0)
        more = first + limit < len(self.late)
        return LatePage(executions=self.late[first : first + limit], next_page_token=str(first + limit) if more else "")


class Planner:
    """A planner that records, finds nothing, or refuses as the test says."""

    def __init__(self) -> None:
        self.told: list[tuple[int, datetime]] = []
        self.void: set[int] = set()
        self.cascading: set[int] = set()
        self.cancelled: list[tuple[Scope | None, int, bool]] = []
        self.refusals: dict[int, NoetlError] = {}

    async def pass_deadlines(self, execution_id: int, *, through: datetime) -> DeadlinesPassed:
        self.told.append((execution_id, through))
        if execution_id in self.refusals:
            raise self.refusals[execution_id]
        passed = 0 if execution_id in self.void else 2
        return DeadlinesPassed(passed=passed, stream_version=9, cascades=execution_id in self.cascading)

    async def cancel(self, scope: Scope | None, execution_id: int, *, reason: str = "", cascade: bool = True) -> int:
        if execution_id in self.refusals:
            raise self.refusals[execution_id]
        self.cancelled.append((scope, execution_id, cascade))
        return 0


def sweep_over(candidates: Candidates, planner: Planner, metrics: MetricSet | None = None) -> PassDeadlines:
    return PassDeadlines(candidates, planner, planner, concurrency=2, metrics=ReaperMetrics(metrics or MetricSet()))


async def test_every_late_execution_is_told_up_to_which_time_it_is_late() -> None:
    planner = Planner()

    sweep = await sweep_over(Candidates(1, 2), planner)()

    assert sweep == DeadlineSweep(found=2, passed=2, void=0, refused=0, failed=0)
    assert sorted(planner.told) == [(1, NOON), (2, NOON + timedelta(seconds=1))]


async def test_what_cannot_be_told_does_not_keep_the_others_from_being_told() -> None:
    planner, metrics = Planner(), MetricSet()
    planner.void = {2}
    planner.refusals = {
        3: TooEarly("not yet"),
        4: AlreadyTerminal("4"),
        5: NotFound("execution", 5),
        6: Unavailable("nobody plans it"),
    }

    sweep = await sweep_over(Candidates(1, 2, 3, 4, 5, 6, 7), planner, metrics)()

    assert sweep == DeadlineSweep(found=7, passed=2, void=1, refused=3, failed=1)
    assert metrics.value("noetl_reaper_deadlines_passed_total") == 4
    assert metrics.value("noetl_reaper_late_executions") == 7


async def test_a_cancelled_family_that_nobody_saw_to_the_end_is_ended() -> None:
    candidates, planner, metrics = Candidates(1, 2, 3, 4), Planner(), MetricSet()
    candidates.late = tuple(replace(one, cascades=one.execution_id > 1) for one in candidates.late)
    planner.refusals = {3: Unavailable("nobody plans it")}
    planner.cascading, planner.void = {2}, {2, 4}  # 4 had but a loop to close, and that is done by now

    sweep = await sweep_over(candidates, planner, metrics)()

    assert sweep == DeadlineSweep(found=4, passed=2, void=1, refused=0, failed=1)
    assert sorted(told for told, _ in planner.told) == [1, 2, 3, 4]
    assert planner.cancelled == [(Scope(tenant_id="t", organization_id="o"), 2, True)]
    assert metrics.value("noetl_reaper_cascades_total") == 1


async def test_all_pages_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_deadlines, "PAGE", 2)
    planner = Planner()

    sweep = await sweep_over(Candidates(*range(1, 6)), planner)()

    assert (sweep.found, len(planner.told)) == (5, 5)


async def test_a_projector_that_is_away_is_somebody_else_s_trouble() -> None:
    candidates = Candidates(1)
    candidates.failure = Unavailable("away")

    with pytest.raises(Unavailable):
        await sweep_over(candidates, Planner())()


async def test_what_nobody_can_answer_for_is_asked_for_less_and_less_often_until_somebody_can() -> None:
    now = 0.0
    planner = Planner()
    planner.refusals = {1: Unavailable("away")}
    sweep = PassDeadlines(
        Candidates(1, 2), planner, planner, concurrency=2, metrics=ReaperMetrics(MetricSet()), clock=lambda: now
    )
    asked: list[float] = []
    for tick in range(200):
        now = tick * 0.5
        before = len([one for one, _ in planner.told if one == 1])
        swept = await sweep()
        if len([one for one, _ in planner.told if one == 1]) > before:
            asked.append(now)
        assert (swept.passed, swept.failed) == (1, 1)

    assert asked == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5]
    planner.refusals.clear()
    now = 200.0
    assert (await sweep()).passed == 2
