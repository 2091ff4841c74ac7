"""Slots: what runs is kept alive, delivered once, stopped when it no longer counts, and followed by what comes next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from noetl_core.children.state import ParkedCall
from noetl_core.errors import LeaseLost, NoetlError, Unavailable
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.ports.commands import (
    Abandonment,
    ClaimOutcome,
    CommandKey,
    Completion,
    GrantedCommand,
    Heartbeats,
    ToldChunk,
    Variables,
    Worker,
)
from noetl_core.ports.spark import SparkCall, SparkProgress
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.heartbeats import tell_of_all
from noetl_testkit.until import until
from noetl_worker.application.call_progress import CallProgress
from noetl_worker.application.command_end import CommandEnd, CommandPark
from noetl_worker.application.persist_before_emit import nothing_stored
from noetl_worker.application.resting import Resting
from noetl_worker.application.slots import Slots
from noetl_worker.entrypoints.work_loop import on_stopped
from noetl_worker.telemetry import WorkerMetrics

ADA = Worker(worker_id="ada")
OK = CommandEnd(result=nothing_stored({}))


def command(name: str, *, lease_seconds: float = 45.0, execution_id: int = 1) -> GrantedCommand:
    return GrantedCommand(
        key=CommandKey(execution_id=execution_id, command_id=name),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step=name,
        activation=1,
        attempt=1,
        lease_seconds=lease_seconds,
        idempotency_key=name,
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


class Planner:
    """A planner that grants what it knows, and can be made to fail."""

    def __init__(self, *commands: GrantedCommand) -> None:
        self.known = {command.key: command for command in commands}
        self.completed: list[tuple[str, str]] = []
        self.following: dict[str, GrantedCommand] = {}
        self.lost: set[str] = set()
        self.unanswered: set[str] = set()
        self.trouble: list[NoetlError] = []
        self.wanted_next: list[bool] = []
        self.parked: list[tuple[str, str, float]] = []
        self.progress: list[dict[CommandKey, Any]] = []
        self.park_gate = asyncio.Event()
        self.park_gate.set()

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        return tuple(
            ClaimOutcome(key=key, command=self.known.get(key), refusal="" if key in self.known else "command.held")
            for key in keys
        )

    async def complete(
        self,
        worker: Worker,
        key: CommandKey,
        result: Mapping[str, Any],
        *,
        wants_next: bool,
        variables: Variables | None = None,
        logs: PayloadRef | None = None,
    ) -> Completion:
        if self.trouble:
            raise self.trouble.pop(0)
        if key.command_id in self.lost:
            raise LeaseLost(command_id=key.command_id, worker=worker.worker_id, holder="bob")
        self.completed.append((key.command_id, result["status"]))
        self.wanted_next.append(wants_next)
        return Completion(stream_version=1, next=self.following.get(key.command_id))

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        raise AssertionError("nothing streams here")

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, Any] | None = None
    ) -> Heartbeats:
        self.progress.append(dict(progress or {}))
        if self.trouble:
            raise self.trouble.pop(0)
        return Heartbeats(
            lost=frozenset(key for key in keys if key.command_id in self.lost),
            unanswered=frozenset(key for key in keys if key.command_id in self.unanswered),
        )

    async def park(self, worker: Worker, key: CommandKey, call: ParkedCall, *, timeout_seconds: float) -> int:
        if self.trouble:
            raise self.trouble.pop(0)
        if key.command_id in self.lost:
            raise LeaseLost(command_id=key.command_id, worker=worker.worker_id, holder="bob")
        self.parked.append((key.command_id, call.child_execution_id, timeout_seconds))
        await self.park_gate.wait()
        return 1

    async def abandon(self, key: CommandKey, **options: Any) -> Abandonment:
        raise AssertionError("workers do not abandon")


async def at_once(command: GrantedCommand) -> CommandEnd:
    return OK


def slots_of(
    planner: Planner,
    run: Any = at_once,
    *,
    size: int = 2,
    clock: Callable[[], float] = lambda: 0.0,
    sleep: Callable[[float], Awaitable[None]] | None = None,
    resting: Resting | None = None,
) -> tuple[Slots, MetricSet]:
    metrics = MetricSet()
    slots = Slots(
        planner,
        run,
        worker=ADA,
        size=size,
        metrics=WorkerMetrics(metrics),
        clock=clock,
        sleep=sleep or asyncio.sleep,
        resting=resting,
    )
    return slots, metrics


async def test_a_granted_command_is_run_and_delivered_and_its_slot_is_free_again() -> None:
    planner = Planner(command("a"))
    slots, _ = slots_of(planner)

    await slots.claim([command("a").key])

    await until(lambda: planner.completed == [("a", "ok")])
    await until(lambda: slots.free == 2)


async def test_the_slot_goes_on_with_what_the_completion_hands_back() -> None:
    planner = Planner(command("a"))
    planner.following = {"a": command("b"), "b": command("c")}
    slots, _ = slots_of(planner, size=1)

    await slots.claim([command("a").key])

    await until(lambda: [name for name, _ in planner.completed] == ["a", "b", "c"])


async def test_a_refused_claim_starts_nothing_and_is_counted_by_reason() -> None:
    planner = Planner()
    slots, metrics = slots_of(planner)

    await slots.claim([command("a").key])

    assert slots.free == 2
    assert metrics.value("noetl_worker_claims_refused_total", reason="command.held") == 1


async def test_a_full_worker_waits_for_a_free_slot() -> None:
    go = asyncio.Event()

    async def held(command: GrantedCommand) -> CommandEnd:
        await go.wait()
        return OK

    planner = Planner(command("a"))
    slots, _ = slots_of(planner, held, size=1)
    await slots.claim([command("a").key])
    waiting = asyncio.create_task(slots.wait_for_free())
    await asyncio.sleep(0)
    assert not waiting.done()

    go.set()

    assert await waiting == 1


async def test_a_result_is_delivered_again_until_the_planner_answers() -> None:
    planner = Planner(command("a"))
    planner.trouble = [Unavailable("away"), Unavailable("away")]
    slots, _ = slots_of(planner)

    await slots.claim([command("a").key])

    await until(lambda: planner.completed == [("a", "ok")])


async def test_a_result_whose_lease_is_lost_is_discarded() -> None:
    planner = Planner(command("a"))
    planner.lost = {"a"}
    slots, metrics = slots_of(planner)

    await slots.claim([command("a").key])

    await until(lambda: metrics.value("noetl_worker_results_discarded_total") == 1)
    assert planner.completed == []


class Stuck:
    """A call that never ends by itself, and tells when it was stopped."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __call__(self, command: GrantedCommand) -> CommandEnd:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return OK


async def test_a_heartbeat_that_says_lost_stops_the_call() -> None:
    planner, stuck = Planner(command("a")), Stuck()
    slots, _ = slots_of(planner, stuck)
    await slots.claim([command("a").key])
    await stuck.started.wait()
    planner.lost = {"a"}

    await tell_of_all(slots)

    await asyncio.wait_for(stuck.stopped.wait(), 60)
    assert planner.completed == []


async def test_a_worker_that_cannot_renew_stops_before_the_lease_can_have_ended() -> None:
    now = [0.0]
    planner, stuck = Planner(command("a", lease_seconds=10.0)), Stuck()
    slots, _ = slots_of(planner, stuck, clock=lambda: now[0])
    await slots.claim([command("a").key])
    await stuck.started.wait()

    now[0] = 8.0
    planner.trouble = [Unavailable("away")]
    await tell_of_all(slots)
    assert not stuck.stopped.is_set()
    now[0] = 9.5
    planner.trouble = [Unavailable("away")]
    await tell_of_all(slots)

    await asyncio.wait_for(stuck.stopped.wait(), 60)


async def test_a_step_that_has_ended_stops_the_calls_of_that_activation_only() -> None:
    first, second = Stuck(), Stuck()

    async def run(granted: GrantedCommand) -> CommandEnd:
        return await (first if granted.step == "a" else second)(granted)

    slots, _ = slots_of(Planner(command("a"), command("b")), run)
    await slots.claim([command("a").key, command("b").key])
    await asyncio.gather(first.started.wait(), second.started.wait())
    stop = on_stopped(slots)

    for body in (
        b"not json",
        b"[]",
        b"{}",
        b'{"execution_id": "1", "step": "a"}',
        b'{"execution_id": "1", "step": "a", "activation": "1"}',
        b'{"execution_id": "2", "step": "a", "activation": 1}',
        b'{"execution_id": "1", "step": "a", "activation": 2}',
    ):
        await stop(body)
    await asyncio.sleep(0)
    assert not first.stopped.is_set()
    await stop(b'{"execution_id": "1", "step": "a", "activation": 1}')

    await asyncio.wait_for(first.stopped.wait(), 60)
    assert not second.stopped.is_set()
    slots.cancel_execution(1)
    await asyncio.wait_for(second.stopped.wait(), 60)


async def test_a_cancelled_execution_stops_only_its_own_calls() -> None:
    first, second = Stuck(), Stuck()
    planner = Planner(command("a"), command("b", execution_id=2))

    async def run(granted: GrantedCommand) -> CommandEnd:
        return await (first if granted.step == "a" else second)(granted)

    slots, _ = slots_of(planner, run)
    await slots.claim([command("a").key, command("b", execution_id=2).key])
    await asyncio.gather(first.started.wait(), second.started.wait())

    slots.cancel_execution(1)

    await asyncio.wait_for(first.stopped.wait(), 60)
    assert not second.stopped.is_set()
    await slots.drain(seconds=0)


async def test_trouble_of_the_worker_itself_is_an_error_result_and_not_silence() -> None:
    async def broken(command: GrantedCommand) -> CommandEnd:
        raise RuntimeError("a defect")

    planner = Planner(command("a"))
    slots, _ = slots_of(planner, broken)

    await slots.claim([command("a").key])

    await until(lambda: planner.completed == [("a", "error")])


async def test_draining_takes_nothing_new_and_lets_what_runs_finish() -> None:
    go = asyncio.Event()

    async def held(command: GrantedCommand) -> CommandEnd:
        await go.wait()
        return OK

    planner = Planner(command("a"))
    slots, _ = slots_of(planner, held)
    await slots.claim([command("a").key])
    draining = asyncio.create_task(slots.drain(seconds=30))
    await asyncio.sleep(0)
    assert slots.free == 0

    go.set()
    await draining

    assert planner.completed == [("a", "ok")]
    assert planner.wanted_next == [False]


async def test_trouble_around_a_call_that_has_not_begun_is_tried_again_and_fails_no_step() -> None:
    outages = [Unavailable("api is away"), Unavailable("api is away")]

    async def run(command: GrantedCommand) -> CommandEnd:
        if outages:
            raise outages.pop()
        return OK

    planner = Planner(command("a"))
    slots, _ = slots_of(planner, run)

    await slots.claim([command("a").key])

    await until(lambda: planner.completed == [("a", "ok")])


async def test_a_command_that_cannot_be_begun_while_its_claim_lasts_is_left_to_another_worker() -> None:
    now = [0.0]

    async def later(seconds: float) -> None:
        now[0] += 5.0

    async def run(command: GrantedCommand) -> CommandEnd:
        raise Unavailable("api is away")

    planner = Planner(command("a", lease_seconds=10.0))
    slots, _ = slots_of(planner, run, clock=lambda: now[0], sleep=later)

    await slots.claim([command("a").key])

    await until(lambda: slots.free == 2)
    assert planner.completed == []


async def test_a_heartbeat_that_crosses_a_delivery_does_not_stop_it() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    class Slow(Planner):
        async def complete(self, *arguments: Any, **options: Any) -> Completion:
            arrived.set()
            await go.wait()
            return await super().complete(*arguments, **options)

    planner = Slow(command("a"))
    planner.following = {"a": command("b")}
    slots, _ = slots_of(planner)
    await slots.claim([command("a").key])
    await arrived.wait()
    planner.lost = {"a"}

    await tell_of_all(slots)
    planner.lost = set()
    go.set()

    await until(lambda: [name for name, _ in planner.completed] == ["a", "b"])


async def test_an_unanswered_heartbeat_neither_renews_nor_stops_a_call() -> None:
    now = [0.0]
    planner, stuck = Planner(command("a", lease_seconds=10.0)), Stuck()
    planner.unanswered = {"a"}
    slots, _ = slots_of(planner, stuck, clock=lambda: now[0])
    await slots.claim([command("a").key])
    await stuck.started.wait()

    now[0] = 8.0
    await tell_of_all(slots)
    assert not stuck.stopped.is_set()
    now[0] = 9.5
    await tell_of_all(slots)

    await asyncio.wait_for(stuck.stopped.wait(), 60)


PARK = CommandPark(
    call=ParkedCall(
        call_id="k",
        child_execution_id="7",
        pipeline=refer_to(b"{}", tenant_id="t", organization_id="o", media_type="application/json"),
    ),
    timeout_seconds=30.0,
)


async def test_a_command_that_waits_is_parked_and_leaves_its_slot() -> None:
    planner = Planner(command("a"))
    planner.trouble = [Unavailable("away")]

    async def waits(command: GrantedCommand) -> CommandPark:
        return PARK

    slots, metrics = slots_of(planner, waits, size=1, sleep=_at_once)
    await slots.claim([command("a").key])
    await until(lambda: slots.free == 1)

    assert planner.parked == [("a", "7", 30.0)]
    assert planner.completed == []
    assert metrics.value("noetl_worker_commands_parked_total") == 1


async def test_a_parking_that_no_longer_counts_is_let_go() -> None:
    planner = Planner(command("a"))
    planner.lost = {"a"}

    async def waits(command: GrantedCommand) -> CommandPark:
        return PARK

    slots, metrics = slots_of(planner, waits)
    await slots.claim([command("a").key])
    await until(lambda: slots.free == 2)

    assert planner.parked == []
    assert metrics.value("noetl_worker_results_discarded_total") == 1


async def test_a_hint_for_a_command_that_is_just_being_parked_is_kept_for_later() -> None:
    planner = Planner(command("a"))
    planner.park_gate.clear()

    async def waits(command: GrantedCommand) -> CommandPark:
        return PARK

    slots, _ = slots_of(planner, waits)
    await slots.claim([command("a").key])
    await until(lambda: planner.parked)

    assert await slots.claim([command("a").key]) == {command("a").key}
    planner.park_gate.set()
    await until(lambda: slots.free == 2)


async def _at_once(seconds: float) -> None:
    await asyncio.sleep(0)


async def test_a_command_that_waits_for_others_lends_its_slot_to_its_own_execution_only() -> None:
    streaming, taker, stranger = command("stream"), command("taker"), command("stranger", execution_id=2)
    planner, resting = Planner(streaming, taker, stranger), Resting()
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def run(one: GrantedCommand) -> CommandEnd:
        if one.step == "stream":
            with resting.resting(one.key):
                waits.set()
                await goes_on.wait()
        return OK

    slots, _ = slots_of(planner, run, size=1, resting=resting)
    await slots.claim([streaming.key])
    await asyncio.wait_for(waits.wait(), 30)

    assert (slots.free, slots.is_lending) == (1, True)
    assert await slots.claim([stranger.key]) == {stranger.key}
    assert await slots.claim([stranger.key, taker.key]) == {stranger.key}
    await until(lambda: ("taker", "ok") in planner.completed)
    goes_on.set()
    await until(lambda: ("stream", "ok") in planner.completed)
    await until(lambda: slots.busy == 0)
    assert (slots.free, slots.is_lending) == (1, False)
    assert await slots.claim([stranger.key]) == frozenset()
    await until(lambda: ("stranger", "ok") in planner.completed)


class StageSlots(Planner):
    """Grants a frame to whoever asks for its slot again, and answers that claim when it is let."""

    def __init__(self, frame: GrantedCommand, *, following: GrantedCommand) -> None:
        super().__init__()
        self.granted, self.claims = frame, 0
        self.following = {frame.key.command_id: following}
        self.answer_again, self.answer_end = asyncio.Event(), asyncio.Event()

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        granted, self.claims = self.granted, self.claims + 1
        if self.claims > 1:
            await self.answer_again.wait()
        return tuple(ClaimOutcome(key=key, command=granted) for key in keys)

    async def complete(self, worker: Worker, key: CommandKey, *what: Any, **of: Any) -> Completion:
        completion = await super().complete(worker, key, *what, **of)
        await self.answer_end.wait()
        return completion


async def test_a_frame_granted_again_before_its_end_was_known_does_not_run_again() -> None:
    frame, following, slot = command("s/0/1"), command("s/1/1"), CommandKey(execution_id=1, command_id="s/3")
    planner, go = StageSlots(frame, following=following), asyncio.Event()
    planner.answer_end.set()
    begun: list[str] = []

    async def run(one: GrantedCommand) -> CommandEnd:
        begun.append(one.step)
        await go.wait()
        return OK

    slots, _ = slots_of(planner, run, size=4)
    await slots.claim([slot])
    again = asyncio.create_task(slots.claim([slot]))
    await until(lambda: planner.claims == 2)
    go.set()
    await until(lambda: len(planner.completed) == 2)
    planner.answer_again.set()
    await again
    await until(lambda: slots.busy == 0)
    assert begun == ["s/0/1", "s/1/1"]


async def test_a_frame_that_a_claim_has_brought_is_not_begun_by_the_commit_before_it() -> None:
    frame, following, slot = command("s/0/1"), command("s/1/1"), CommandKey(execution_id=1, command_id="s/3")
    planner, go = StageSlots(frame, following=following), asyncio.Event()
    begun: list[str] = []

    async def run(one: GrantedCommand) -> CommandEnd:
        begun.append(one.step)
        if one is following:
            await go.wait()
        return OK

    slots, _ = slots_of(planner, run, size=4)
    await slots.claim([slot])
    await until(lambda: planner.completed)
    planner.granted = following
    planner.answer_again.set()
    await slots.claim([slot])
    await until(lambda: len(begun) == 2)
    planner.answer_end.set()
    await until(lambda: slots.busy == 1)
    go.set()
    await until(lambda: slots.busy == 0)
    assert begun == ["s/0/1", "s/1/1"]
    assert planner.completed == [("s/0/1", "ok"), ("s/1/1", "ok")]


async def test_how_far_calls_of_spark_are_is_told_once_with_a_heartbeat() -> None:
    planner, progress, gate = Planner(command("a")), CallProgress(), asyncio.Event()

    async def wait(command: GrantedCommand) -> CommandEnd:
        await gate.wait()
        return OK

    slots = Slots(planner, wait, worker=ADA, size=2, metrics=WorkerMetrics(MetricSet()), progress=progress)
    (key,) = planner.known
    await slots.claim([key])
    step = planner.known[key].step
    call = SparkCall(
        call_id="c", tenant_id="t", organization_id="o", execution_id=str(key.execution_id), step=step, sql="SELECT 1"
    )
    await tell_of_all(slots)
    has_news = [slots.beats.has_news]

    progress.spark(call, SparkProgress(stages_done=0, stages=2, tasks_done=1, tasks=9))
    progress.spark(call, SparkProgress(stages_done=1, stages=2, tasks_done=8, tasks=9))
    has_news.append(slots.beats.has_news)
    await tell_of_all(slots)
    await tell_of_all(slots)

    assert has_news == [False, True]

    told = {"engine": "spark", "stages_done": 1, "stages": 2, "tasks_done": 8, "tasks": 9}
    assert planner.progress == [{}, {key: told}, {}]
    gate.set()
    await slots.drain(seconds=10.0)
