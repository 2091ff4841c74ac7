"""Slots that are handed over to Spark: gathered by stage, dealt out again while there is work, given back when not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.ports.spark import SparkEnd, SparkFailure, SparkTasks, SparkWork
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.until import until
from noetl_worker.application import spark_stages
from noetl_worker.application.slot_order import SlotOrder, SlotReport, variables_of_slots
from noetl_worker.application.spark_stages import SparkStages, StageHint
from noetl_worker.telemetry import WorkerMetrics


class Sessions:
    """Answers jobs as it is told, the last answer for all that follow."""

    def __init__(self, *answers: SparkEnd, holds: bool = False) -> None:
        self._answers = list(answers) or [done()]
        self._holds = holds
        self.asked: list[SparkTasks] = []
        self.cancelled = 0

    async def warm(self) -> None: ...

    async def run(self, call: SparkWork) -> SparkEnd:
        assert isinstance(call, SparkTasks)
        self.asked.append(call)
        if self._holds:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @property
    def slots(self) -> list[list[JsonValue]]:
        """Of each job."""
        return [list(asked.shares) for asked in self.asked]


class HeldSessions(Sessions):
    """Jobs end when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[asyncio.Future[SparkEnd]] = []

    async def run(self, call: SparkWork) -> SparkEnd:
        assert isinstance(call, SparkTasks)
        self.asked.append(call)
        self.ends.append(asyncio.get_running_loop().create_future())
        return await self.ends[-1]


class Otherwise:
    """What Spark could not run."""

    def __init__(self) -> None:
        self.hints: list[StageHint] = []
        self.reasons: list[str] = []

    async def __call__(self, hints: Sequence[StageHint], reason: str) -> None:
        self.hints += hints
        self.reasons.append(reason)


def done(*left: int, frames: int = 1) -> SparkEnd:
    return SparkEnd(data=[SlotReport(frames=frames, left=left).to_json()])


def failed(code: str) -> SparkEnd:
    return SparkEnd(failure=SparkFailure(kind="unknown", code=code, message=f"it is {code}"))


def hint(slot: int, *, stage: str = "7-ab", engine: str = "spark") -> StageHint:
    return StageHint(execution_id=7, stage_id=stage, slot=slot, engine=engine, step="load", tenant_id="acme")


def order(hint: StageHint, name: str, slice_seconds: float) -> SlotOrder:
    return SlotOrder(
        execution_id=hint.execution_id,
        stage_id=hint.stage_id,
        owner=name,
        pool="default",
        max_distance="any",
        rates="",
        locator="",
        slice_seconds=slice_seconds,
        token="t",
        variables={},
    )


Make = Callable[..., SparkStages]


@pytest.fixture
def otherwise() -> Otherwise:
    return Otherwise()


@pytest.fixture
def make(otherwise: Otherwise, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(spark_stages, "AGAIN_SECONDS", 0.0)

    def build(sessions: Sessions, *, capacity: int = 8) -> SparkStages:
        return SparkStages(
            sessions,
            function="m:f",
            order=order,
            otherwise=otherwise,
            engines=frozenset({"spark"}),
            capacity=capacity,
            metrics=WorkerMetrics(MetricSet()),
        )

    return build


async def test_hints_of_a_stage_are_one_job_and_those_of_another_are_another(make: Make) -> None:
    sessions = Sessions()
    stages = make(sessions)

    assert stages.take([hint(0), hint(2), hint(1, stage="7-cd"), hint(2)]) == frozenset()
    await until(lambda: stages.held == 0)

    assert sorted(sessions.slots) == [[0, 2], [1]]
    assert {asked.execution_id for asked in sessions.asked} == {"7"}


async def test_slots_that_are_left_are_taken_up_again_with_those_that_came_meanwhile(make: Make) -> None:
    sessions = Sessions(done(0, 1), done(0), done())
    stages = make(sessions)

    stages.take([hint(0), hint(1)])
    await until(lambda: stages.held == 0)

    assert sessions.slots == [[0, 1], [0, 1], [0]]
    slices = [asked.common["slice_seconds"] for asked in sessions.asked]
    assert slices == [spark_stages.FIRST_SLICE_SECONDS, spark_stages.SLICE_SECONDS, spark_stages.SLICE_SECONDS]
    assert len({asked.common["owner"] for asked in sessions.asked}) == 3


async def test_what_there_is_no_room_for_is_left_to_others(make: Make) -> None:
    stages = make(Sessions(holds=True), capacity=2)

    assert stages.take([hint(0), hint(1), hint(2)]) == {hint(2).key}
    assert stages.take([hint(1)]) == frozenset(), "it is here already"
    await stages.drain(seconds=0)

    assert stages.held == 0
    assert stages.take([hint(0)]) == {hint(0).key}, "nothing new any more"


@pytest.mark.parametrize("stop", [lambda one: one.cancel_execution(7), lambda one: one.stop_stage("7-ab")])
async def test_what_no_longer_counts_is_cancelled(make: Make, stop: Callable[[SparkStages], None]) -> None:
    sessions = Sessions(holds=True)
    stages = make(sessions)
    stages.take([hint(0)])
    await until(lambda: sessions.asked)

    stop(stages)
    await until(lambda: stages.held == 0)

    assert sessions.cancelled == 1


async def test_a_job_that_stands_still_keeps_no_slot_that_is_free_for_the_planner(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_SLICE_SECONDS", "SLICE_SECONDS", "LATE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(spark_stages, name, 0.01)
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0), hint(1)])
    await until(lambda: sessions.slots == [[0, 1]])

    stages.take([hint(1)])
    await until(lambda: sessions.slots == [[0, 1], [1]])
    stages.take([hint(0)])  # remembered: a stage has two jobs at most
    assert stages.held == 2

    sessions.ends[1].set_result(done(1))
    await until(lambda: sessions.slots == [[0, 1], [1], [0, 1]])
    sessions.ends[0].set_result(done(0, 1))
    sessions.ends[2].set_result(done())
    await until(lambda: stages.held == 0)
    assert len(sessions.asked) == 3, "what is left of the late job was another's already"


async def test_all_jobs_of_a_stage_end_with_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_SLICE_SECONDS", "LATE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(spark_stages, name, 0.01)
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0), hint(1)])
    await until(lambda: len(sessions.ends) == 1)
    stages.take([hint(1)])
    await until(lambda: len(sessions.ends) == 2)

    stages.cancel_execution(7)
    await until(lambda: stages.held == 0)

    assert all(end.cancelled() for end in sessions.ends)


@pytest.mark.parametrize("code", ["SPARK_UNAVAILABLE", "PY_ModuleNotFoundError"])
async def test_slots_that_no_job_could_run_go_elsewhere_with_the_reason(
    make: Make, otherwise: Otherwise, code: str
) -> None:
    stages = make(Sessions(failed(code)))

    stages.take([hint(3), hint(4)])
    await until(lambda: stages.held == 0)

    assert [one.slot for one in otherwise.hints] == [3, 4]
    assert otherwise.reasons == [f"it is {code}"]


@pytest.mark.parametrize(
    "end",
    [
        failed("SPARK_SESSION_LOST"),
        SparkEnd(data=[{"error": "the process was killed", "code": "SPARK_EOFException"}]),
    ],
)
async def test_slots_of_what_has_died_are_given_back_and_nothing_fails(
    make: Make, otherwise: Otherwise, end: SparkEnd
) -> None:
    sessions = Sessions(end)
    stages = make(sessions)

    stages.take([hint(0)])
    await until(lambda: stages.held == 0)

    assert len(sessions.asked) == 1, "the planner hints again what is free"
    assert otherwise.hints == []


def test_stages_of_other_engines_are_not_for_spark(make: Make) -> None:
    stages = make(Sessions())

    assert stages.takes(hint(0))
    assert not any(stages.takes(hint(0, engine=engine)) for engine in ("inline", "default", ""))


def test_slots_get_our_settings_and_no_tokens() -> None:
    variables = {"NOETL_TOKEN": "s", "NOETL_NATS_TOKEN": "s", "NOETL_PAYLOAD_URL": "file:///p", "AWS_REGION": "r"}

    assert variables_of_slots({**variables, "OTHER": "x"}, ["AWS_REGION"]) == {
        "NOETL_PAYLOAD_URL": "file:///p",
        "AWS_REGION": "r",
    }


def test_tasks_share_buckets_on_one_machine_and_rates_elsewhere() -> None:
    here, elsewhere = (
        SlotOrder.from_json({**order(hint(0), "o", 1.0).to_json(), "slots": 8, "rates": rates})
        for rates in ("/scratch/rates", "")
    )

    assert (here.share_of_rates(2), elsewhere.share_of_rates(2), elsewhere.share_of_rates(8)) == (1.0, 0.25, 1.0)
