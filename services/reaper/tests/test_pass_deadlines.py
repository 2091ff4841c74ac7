"""A reaper tells late executions so, whatever becomes of some of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from noetl_core.append import Fence
from noetl_core.errors import AlreadyTerminal, Fenced, NoetlError, NotFound, TooEarly, Unavailable
from noetl_core.ports.deadlines import DeadlinesPassed, LateExecution, LatePage
from noetl_core.ports.event_log import Scope
from noetl_reaper.application import pass_deadlines
from noetl_reaper.application.election import Election
from noetl_reaper.application.pass_deadlines import DeadlineSweep, PassDeadlines
from noetl_reaper.telemetry import ReaperMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import NOON

FENCE = Fence(role="reaper", shard=0, epoch=3)


class Elected:
    """Holds the only shard until it hears that it does not."""

    def __init__(self) -> None:
        self.lost: list[int] = []

    def epoch(self, shard: int) -> int | None:
        return None if self.lost else FENCE.epoch

    def fenced(self, shard: int) -> None:
        self.lost.append(shard)


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

    async def pass_deadlines(
        self, execution_id: int, *, through: datetime, reclaimer: str = "", fence: Fence | None = None
    ) -> DeadlinesPassed:
        assert (reclaimer, fence) == ("urn:noetl:reaper:r-0", FENCE)
        self.told.append((execution_id, through))
        if execution_id in self.refusals:
            raise self.refusals[execution_id]
        passed = 0 if execution_id in self.void else 2
        return DeadlinesPassed(passed=passed, stream_version=9, cascades=execution_id in self.cascading)

    async def cancel(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        reason: str = "",
        cascade: bool = True,
        fence: Fence | None = None,
    ) -> int:
        assert fence == FENCE
        if execution_id in self.refusals:
            raise self.refusals[execution_id]
        self.cancelled.append((scope, execution_id, cascade))
        return 0


def sweep_over(candidates: Candidates, planner: Planner, metrics: MetricSet | None = None) -> PassDeadlines:
    return deadlines_of(candidates, planner, Elected(), ReaperMetrics(metrics or MetricSet()))


def deadlines_of(
    candidates: Candidates,
    planner: Planner,
    ownership: Elected,
    metrics: ReaperMetrics,
    clock: Callable[[], float] = time.monotonic,
) -> PassDeadlines:
    return PassDeadlines(
        candidates,
        planner,
        planner,
        election=Election(ownership),
        reclaimer="urn:noetl:reaper:r-0",
        concurrency=2,
        metrics=metrics,
        clock=clock,
    )


async def test_every_late_execution_is_told_up_to_which_time_it_is_late() -> None:
    planner = Planner()

    sweep = await sweep_over(Candidates(1, 2), planner)(FENCE)

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

    sweep = await sweep_over(Candidates(1, 2, 3, 4, 5, 6, 7), planner, metrics)(FENCE)

    assert sweep == DeadlineSweep(found=7, passed=2, void=1, refused=3, failed=1)
    assert metrics.value("noetl_reaper_deadlines_passed_total") == 4
    assert metrics.value("noetl_reaper_late_executions") == 7


async def test_a_cancelled_family_that_nobody_saw_to_the_end_is_ended() -> None:
    candidates, planner, metrics = Candidates(1, 2, 3, 4), Planner(), MetricSet()
    candidates.late = tuple(replace(one, cascades=one.execution_id > 1) for one in candidates.late)
    planner.refusals = {3: Unavailable("nobody plans it")}
    planner.cascading, planner.void = {2}, {2, 4}  # 4 had but a loop to close, and that is done by now

    sweep = await sweep_over(candidates, planner, metrics)(FENCE)

    assert sweep == DeadlineSweep(found=4, passed=2, void=1, refused=0, failed=1)
    assert sorted(told for told, _ in planner.told) == [1, 2, 3, 4]
    assert planner.cancelled == [(Scope(tenant_id="t", organization_id="o"), 2, True)]
    assert metrics.value("noetl_reaper_cascades_total") == 1


async def test_all_pages_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_deadlines, "PAGE", 2)
    planner = Planner()

    sweep = await sweep_over(Candidates(*range(1, 6)), planner)(FENCE)

    assert (sweep.found, len(planner.told)) == (5, 5)


async def test_a_projector_that_is_away_is_somebody_else_s_trouble() -> None:
    candidates = Candidates(1)
    candidates.failure = Unavailable("away")

    with pytest.raises(Unavailable):
        await sweep_over(candidates, Planner())(FENCE)


async def test_what_nobody_can_answer_for_is_asked_for_less_and_less_often_until_somebody_can() -> None:
    now = 0.0
    planner = Planner()
    planner.refusals = {1: Unavailable("away")}
    sweep = deadlines_of(Candidates(1, 2), planner, Elected(), ReaperMetrics(MetricSet()), clock=lambda: now)
    asked: list[float] = []
    for tick in range(200):
        now = tick * 0.5
        before = len([one for one, _ in planner.told if one == 1])
        swept = await sweep(FENCE)
        if len([one for one, _ in planner.told if one == 1]) > before:
            asked.append(now)
        assert (swept.passed, swept.failed) == (1, 1)

    assert asked == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5]
    planner.refusals.clear()
    now = 200.0
    assert (await sweep(FENCE)).passed == 2


async def test_a_reaper_that_hears_it_was_deposed_looks_no_further_and_believes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pass_deadlines, "PAGE", 2)
    planner, ownership = Planner(), Elected()
    planner.refusals = {1: Fenced(role="reaper", shard=0, epoch=3, current=4)}
    look = deadlines_of(Candidates(*range(1, 6)), planner, ownership, ReaperMetrics(MetricSet()))
    election = Election(ownership)
    assert election.fence() == FENCE

    sweep = await look(FENCE)

    assert (sweep.found, sweep.passed, sweep.refused) == (2, 1, 1)
    assert ownership.lost == [0]
    assert election.fence() is None
    assert not election.ended_by(Fenced(role="planner", shard=0, epoch=3, current=4))  # that is the planner's affair


def test_a_refusal_of_an_earlier_epoch_takes_no_later_one_away() -> None:
    ownership = Elected()
    election = Election(ownership)

    assert election.ended_by(Fenced(role="reaper", shard=0, epoch=FENCE.epoch - 1, current=FENCE.epoch))

    assert ownership.lost == []
    assert election.fence() == FENCE
