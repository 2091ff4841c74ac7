"""Slots that are handed over to Spark: gathered by stage, dealt out again while there is work, given back when not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.errors import Unavailable
from noetl_core.ports.spark import SparkEnd, SparkFailure, SparkTasks, SparkWork
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.until import until
from noetl_worker.application import spark_stages, stage_jobs
from noetl_worker.application.slot_order import SlotOrder, SlotReport, variables_of_slots
from noetl_worker.application.spark_stages import SparkStages
from noetl_worker.application.stage_jobs import StageHint, StageJob, StageSlots
from noetl_worker.telemetry import WorkerMetrics


class Sessions:
    """Answers jobs as it is told, the last answer for all that follow."""

    def __init__(self, *answers: SparkEnd, holds: bool = False) -> None:
        self._answers = list(answers) or [done()]
        self._holds = holds
        self.asked: list[SparkTasks] = []
        self.cancelled = 0
        self.released: list[tuple[str, Sequence[JsonValue]]] = []

    async def warm(self) -> None: ...

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        self.released.append((call_id, shares))

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        assert isinstance(call, SparkTasks)
        self.asked.append(call)
        began()
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
    """Jobs end when they are told to, and have seats at once if there are any."""

    def __init__(self, *, has_seats: bool = True) -> None:
        super().__init__()
        self.ends: list[asyncio.Future[SparkEnd]] = []
        self.has_seats = has_seats
        self.begin: Callable[[], None] = lambda: None

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        assert isinstance(call, SparkTasks)
        self.asked.append(call)
        self.begin = began
        if self.has_seats:
            began()
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


class Log:
    """Who has the slots, as the planner would say."""

    def __init__(self) -> None:
        self.holders: dict[int, str] = {}
        self.is_away = False
        self.asked = 0

    async def __call__(self, hint: StageHint) -> dict[int, str]:
        self.asked += 1
        if self.is_away:
            raise Unavailable("nobody is there")
        return self.holders

    def give(self, job: SparkTasks, *slots: int, task: str = "0") -> None:
        """The tasks of a job have frames at these slots, and nobody else at any."""
        self.holders = dict.fromkeys(slots, f"{job.common['owner']}-{task}")


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
def log() -> Log:
    return Log()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are late at once, and what has no frame is soon left."""
    for name in ("FIRST_SLICE_SECONDS", "SLICE_SECONDS", "LOOK_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(spark_stages, name, 0.01)
    monkeypatch.setattr(stage_jobs, "LATE_SECONDS", 0.01)
    monkeypatch.setattr(stage_jobs, "LOST_SECONDS", 0.03)


@pytest.fixture
def make(otherwise: Otherwise, log: Log, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(spark_stages, "AGAIN_SECONDS", 0.0)

    def build(sessions: Sessions, *, capacity: int = 8) -> SparkStages:
        return SparkStages(
            sessions,
            function="m:f",
            order=order,
            otherwise=otherwise,
            holders=log,
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


@pytest.mark.usefixtures("fast")
async def test_a_job_that_stands_still_keeps_no_slot_that_is_free_for_the_planner(make: Make) -> None:
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0), hint(1)])
    await until(lambda: sessions.slots == [[0, 1]])

    stages.take([hint(1)])
    await until(lambda: sessions.slots == [[0, 1], [1]])
    assert stages.held == 2

    sessions.ends[1].set_result(done(1))
    await until(lambda: sessions.slots == [[0, 1], [1], [1]])
    sessions.ends[0].set_result(done(0, 1))
    sessions.ends[2].set_result(done())
    await until(lambda: len(sessions.asked) == 4)
    assert sessions.slots[3] == [0], "what is left of the late job was another's already, but for this"
    sessions.ends[3].set_result(done())
    await until(lambda: stages.held == 0)


@pytest.mark.usefixtures("fast")
async def test_frames_that_last_in_two_jobs_do_not_hold_up_the_other_slots(make: Make, log: Log) -> None:
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0), hint(1), hint(2)])
    await until(lambda: len(sessions.asked) == 1)
    stages.take([hint(1), hint(2)])
    await until(lambda: sessions.slots == [[0, 1, 2], [1, 2]])

    stages.take([hint(2)])

    await until(lambda: sessions.slots == [[0, 1, 2], [1, 2], [2]])
    stages.cancel_execution(7)
    await until(lambda: stages.held == 0)


async def test_nobody_else_waits_for_seats_in_the_place_of_a_job_that_does() -> None:
    job = StageJob(call_id="c", owner="w.n-1", given=frozenset({0, 1}), slots={0, 1}, slice_seconds=10.0)
    waiting = asyncio.create_task(_nothing())
    stage = StageSlots(first=hint(0), waiting={2}, hinted={1}, jobs={waiting: job})

    stage.let_go(1e9)
    assert (stage.waiting, stage.may_begin(1e9)) == ({2}, False), "it has no seats, however long it waits"

    job.begin(1e9)
    late_at = 1e9 + 10.0 + stage_jobs.LATE_SECONDS
    stage.let_go(late_at)
    assert (stage.waiting, stage.may_begin(late_at)) == ({1, 2}, True)
    await waiting


async def test_when_tasks_have_seats_is_for_the_session_to_say(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    monkeypatch.setattr(StageJob, "begin", lambda job, now: begun.append(now))
    sessions = HeldSessions(has_seats=False)
    stages = make(sessions)
    stages.take([hint(0)])
    await until(lambda: sessions.ends)
    assert begun == []

    sessions.begin()

    assert begun == [pytest.approx(asyncio.get_running_loop().time(), abs=60)]
    await stages.drain(seconds=0)


@pytest.mark.usefixtures("fast")
async def test_a_job_of_which_the_log_knows_nothing_any_more_is_given_up(make: Make, log: Log) -> None:
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0), hint(1)])
    await until(lambda: len(sessions.asked) == 1)
    log.give(sessions.asked[0], 0, 1)
    asked = log.asked
    await until(lambda: log.asked > asked + 10)
    assert not sessions.ends[0].cancelled(), "frames may last"

    log.is_away = True  # who is silent says nothing about who has frames
    asked = log.asked
    await until(lambda: log.asked > asked + 10)
    assert not sessions.ends[0].cancelled()

    log.holders, log.is_away = {0: "another-worker.x-1-0"}, False
    await until(sessions.ends[0].cancelled)
    await until(lambda: stages.held == 0)
    assert sessions.released in ([], [(sessions.asked[0].call_id, [0])], [(sessions.asked[0].call_id, [1])])


@pytest.mark.usefixtures("fast")
async def test_slots_without_frames_of_a_job_that_has_others_are_released(make: Make, log: Log) -> None:
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0), hint(1), hint(2)])
    await until(lambda: len(sessions.asked) == 1)
    log.give(sessions.asked[0], 0, 1, 2)
    await until(lambda: log.asked > 1)

    log.give(sessions.asked[0], 1)
    await until(lambda: (sessions.asked[0].call_id, [0, 2]) in sessions.released)

    assert not sessions.ends[0].cancelled()
    sessions.ends[0].set_result(SparkEnd(data=[{"error": "killed", "code": "SPARK_CANCELLED"}, {"frames": 1}]))
    await until(lambda: stages.held == 0)


@pytest.mark.usefixtures("fast")
async def test_a_process_that_is_slow_to_start_is_not_given_up_with_those_that_lost_frames(
    make: Make, log: Log
) -> None:
    sessions = HeldSessions()
    stages = make(sessions)
    stages.take([hint(0)])
    await until(lambda: log.asked > 20)

    assert not sessions.ends[0].cancelled()
    assert stage_jobs.UNSEEN_SECONDS > stage_jobs.LOST_SECONDS
    sessions.ends[0].set_result(done())
    await until(lambda: stages.held == 0)


@pytest.mark.usefixtures("fast")
async def test_slots_of_a_job_that_was_given_up_are_taken_up_again_if_they_are_hinted(make: Make, log: Log) -> None:
    job = StageJob(call_id="c", owner="w.n-1", given=frozenset({0, 1}), slots={0, 1}, slice_seconds=0.0)
    stage = StageSlots(first=hint(0), hinted={1})
    given_up = asyncio.create_task(_nothing())
    stage.jobs[given_up] = job
    given_up.cancel()
    await asyncio.wait([given_up])

    stage.end(given_up)

    assert (stage.waiting, stage.hinted, stage.jobs) == ({1}, set(), {})


def test_frames_are_those_of_a_job_by_the_name_of_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    job = StageJob(call_id="c", owner="w.n-1", given=frozenset({0, 1, 2}), slots=set(), slice_seconds=10.0)
    lost, unseen, late = stage_jobs.LOST_SECONDS, stage_jobs.UNSEEN_SECONDS, stage_jobs.LATE_SECONDS
    assert not job.is_late(1e9), "it has no seats"
    job.begin(100.0)
    assert (job.is_late(109.0 + late), job.is_late(110.0 + late)) == (False, True)

    job.heed({0: "w.n-1-7", 1: "w.n-1-8", 2: "w.n-12-9"}, 200.0)
    job.heed({0: "w.n-1-7", 1: "w.n-2-3"}, 205.0)

    assert job.left(204.9 + lost) == frozenset()
    assert job.left(205.0 + lost) == {1}, "another has it"
    assert job.left(200.0 + unseen) == {1, 2}, "it never had that"
    job.heed({0: "w.n-1-7", 1: "w.n-1-8"}, 210.0)
    assert job.left(210.0 + unseen) == {2}


async def _nothing() -> set[int]:
    return set()


@pytest.mark.usefixtures("fast")
async def test_all_jobs_of_a_stage_end_with_it(make: Make) -> None:
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
