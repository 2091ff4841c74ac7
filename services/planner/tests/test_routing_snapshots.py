"""Planners that take over a long execution begin with what the last owner left, if the log proves it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from noetl_core import routing_snapshots
from noetl_core.append import END_KEY, Fence
from noetl_core.canonical import sha256_hex
from noetl_core.errors import Fenced, NoetlError, Unavailable
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.fold import empty
from noetl_core.journal import Settled
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.event_log import EventPage
from noetl_core.routing_snapshots import Refusal, RoutingSnapshot, open_routing, take_routing
from noetl_core.values import replace
from noetl_planner.application.routing_snapshots import KeepRouting
from noetl_planner.application.turn import TurnPlanner
from noetl_planner.application.turn_parts import Turn
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots
from noetl_testkit.planning import WORKER, Planning, ok
from noetl_testkit.until import until

EVERY = 40
POLL = """
workload: {n: 0}
workflow:
- step: poll
  tool: {kind: noop}
  set: {ctx.n: "{{ n + 1 }}"}
  next: {arcs: [{step: poll, when: "{{ n < 1000 }}"}]}
"""
EVENTS_A_VISIT = 8
ORDERED = """
workflow:
- {step: first, tool: {kind: noop}, set: {ctx.zebra: 1}, next: {arcs: [{step: poll}]}}
- step: poll
  tool: {kind: noop}
  set: {ctx.apple: 2}
  next:
    arcs:
    - {step: poll, when: "{{ not output.data.last }}"}
    - {step: right, when: "{{ ctx | list | last == 'apple' }}"}
    - {step: wrong}
- {step: right, tool: {kind: noop}}
- {step: wrong, tool: {kind: noop}}
"""


class Reads:
    """What is read of the log from now on."""

    def __init__(self, planning: Planning) -> None:
        self.versions: list[int] = []
        self._read = planning.log.read
        planning.log.read = self  # type: ignore[method-assign]  # a read that is looked at

    async def __call__(self, *args: Any, **options: Any) -> EventPage:
        page = await self._read(*args, **options)
        self.versions += [event.stream_version for event in page.events]
        return page


async def visits(planning: Planning, command: GrantedCommand, times: int) -> GrantedCommand:
    """A worker that is handed one command after the other, while snapshots are written aside."""
    for _ in range(times):
        completion = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)
        assert completion.next is not None
        command = completion.next
        await asyncio.sleep(0)
    return command


async def long_one(planning: Planning, *, times: int = 30) -> GrantedCommand:
    """An execution of which some snapshots were written."""
    await planning.start(POLL, n=0)
    command = await visits(planning, await planning.claim("poll"), times)
    await until(lambda: not writing())
    return command


def writing() -> bool:
    return any(task.get_name() == "routing-snapshots" for task in asyncio.all_tasks())


def kept(planning: Planning) -> RoutingSnapshot:
    return planning.snapshots.kept[planning.execution_id]


def counts(planning: Planning, name: str, **labels: str) -> float:
    return planning.counted.value(f"noetl_planner_{name}_total", **labels)


async def goes_on(planning: Planning, command: GrantedCommand) -> None:
    """Another planner takes over, and the worker does not notice."""
    await planning.replace_planner()
    after = await visits(planning, command, 1)
    assert after.activation == command.activation + 1
    await planning.actors.stop()


async def test_a_snapshot_is_written_whenever_enough_has_happened_since_the_last_one() -> None:
    planning = Planning(snapshot_events=EVERY)
    versions: list[int] = []
    keep = planning.snapshots.keep

    async def seen(snapshot: RoutingSnapshot, **options: Any) -> bool:
        versions.append(snapshot.stream_version)
        return await keep(snapshot, **options)

    planning.snapshots.keep = seen  # type: ignore[method-assign]  # looked at

    await long_one(planning)

    gaps = [after - before for before, after in pairwise([0, *versions])]
    assert len(versions) >= 5
    assert all(EVERY <= gap < EVERY + EVENTS_A_VISIT for gap in gaps), gaps
    assert counts(planning, "snapshots_written", outcome="written") == len(versions)
    await planning.actors.stop()


async def test_a_planner_that_takes_over_reads_only_what_came_after_the_snapshot() -> None:
    planning = Planning(snapshot_events=EVERY)
    command = await long_one(planning, times=100)
    version, head = kept(planning).stream_version, len(planning.events())
    reads = Reads(planning)

    await goes_on(planning, command)

    assert reads.versions == [*range(1, EVERY + 1), *range(version, head + 1)], "the first page, and the rest"
    assert counts(planning, "snapshots_used") == 1
    assert counts(planning, "events_spared") == version
    assert counts(planning, "recovery_events") == len(reads.versions)
    assert counts(planning, "events_read") == len(reads.versions)


async def test_a_short_execution_costs_one_read_and_nobody_asks_for_a_snapshot() -> None:
    planning = await Planning(snapshot_events=500).start(POLL, n=0)
    command = await visits(planning, await planning.claim("poll"), 40)
    reads = Reads(planning)

    await goes_on(planning, command)

    assert planning.snapshots.asked == 0
    assert planning.snapshots.kept == {}
    assert reads.versions == [*range(1, len(reads.versions) + 1)]


async def test_without_a_snapshot_the_whole_log_is_read_and_one_is_left_at_once() -> None:
    planning = Planning(snapshot_events=EVERY)
    command = await long_one(planning)
    planning.snapshots.kept.clear()
    head = len(planning.events())
    reads = Reads(planning)

    await goes_on(planning, command)

    assert reads.versions == [*range(1, head + 1)]
    assert kept(planning).stream_version >= head
    assert counts(planning, "snapshots_used") == 0


async def test_a_planner_that_is_stopped_while_it_reads_leaves_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("noetl_planner.application.followed_log.READ_PAGE", 20)
    planning = Planning(snapshot_events=EVERY)
    command = await long_one(planning, times=100)
    planning.snapshots.kept.clear()
    reads, stands = Reads(planning), asyncio.Event()

    async def stand_still(*args: Any, **options: Any) -> EventPage:
        if options["from_version"] > 400:
            stands.set()
            await asyncio.Event().wait()
        return await reads(*args, **options)

    planning.log.read = stand_still  # type: ignore[method-assign]  # the log does not answer any more
    await planning.replace_planner()
    await stands.wait()
    await until(lambda: not writing())
    left = kept(planning).stream_version
    planning.log.read = reads  # type: ignore[method-assign]
    reads.versions.clear()

    await goes_on(planning, command)

    assert 400 - 2 * EVERY < left <= 420
    assert reads.versions[EVERY] == left, "the first page, and from there on"


async def test_a_long_history_that_is_being_read_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("followed_log", "routing_snapshots"):
        monkeypatch.setattr(f"noetl_planner.application.{module}.READ_PAGE", 20)
    planning = Planning()
    command = await long_one(planning)
    moved_at: list[float | None] = []
    read = planning.log.read

    async def looked_at(*args: Any, **options: Any) -> EventPage:
        moved_at.append(planning.actors._actors[planning.execution_id]._moved_at)
        return await read(*args, **options)

    planning.log.read = looked_at  # type: ignore[method-assign]

    await goes_on(planning, command)

    assert len(moved_at) > 10
    assert len(set(moved_at)) == len(moved_at), "each page counts as a step"


def forged(planning: Planning, change: Callable[[Settled], Settled]) -> RoutingSnapshot:
    """Sealed rightly, and wrong."""
    opened = open_routing(kept(planning), execution_id=planning.execution_id, rules=planning.rules)
    assert isinstance(opened, Settled)
    snapshot = take_routing(change(opened), rules=planning.rules)
    assert snapshot is not None
    return snapshot


def of_another_execution(planning: Planning) -> RoutingSnapshot:
    return forged(
        planning,
        lambda one: replace(
            one,
            state=replace(one.state, execution=replace(one.state.execution, execution_id=planning.execution_id + 1)),
        ),
    )


SPOILT: dict[str, tuple[Callable[[Planning], RoutingSnapshot], Refusal]] = {
    "corrupt": (lambda one: replace(kept(one), body=kept(one).body[:-9] + b"corrupted"), Refusal.DAMAGED),
    "truncated": (
        lambda one: replace(kept(one), body=kept(one).body[:99], body_sha256=sha256_hex(kept(one).body[:99])),
        Refusal.DAMAGED,
    ),
    "foreign": (of_another_execution, Refusal.OTHER_EXECUTION),
    "foreign inside": (
        lambda one: replace(of_another_execution(one), execution_id=one.execution_id),
        Refusal.OTHER_EXECUTION,
    ),
    "other rules": (lambda one: replace(kept(one), rules="of another release"), Refusal.OTHER_RULES),
    "other format": (lambda one: replace(kept(one), state_format=1), Refusal.OTHER_FORMAT),
    "other log": (lambda one: replace(kept(one), event_checksum="0" * 64), Refusal.OTHER_LOG),
    "beyond the log": (
        lambda one: forged(one, lambda was: replace(was, state=replace(was.state, stream_version=9_999))),
        Refusal.OTHER_LOG,
    ),
    "misleading": (
        lambda one: forged(
            one,
            lambda was: replace(
                was,
                state=replace(
                    was.state, execution=replace(was.state.execution, catalog_id="gone", path="no/such/playbook")
                ),
            ),
        ),
        Refusal.MISLEADING,
    ),
}


@pytest.mark.parametrize("how", SPOILT)
async def test_what_cannot_be_proven_is_refused_by_name_and_the_outcome_is_the_same(how: str) -> None:
    planning = Planning(snapshot_events=EVERY)
    command = await long_one(planning)
    spoil, reason = SPOILT[how]
    planning.snapshots.kept[planning.execution_id] = spoil(planning)
    head = len(planning.events())
    reads = Reads(planning)

    await planning.replace_planner()
    if reason is Refusal.MISLEADING:
        await until(lambda: counts(planning, "snapshots_refused", reason=str(reason)) == 1)
        await until(lambda: planning.actors._actors[planning.execution_id].known_version >= head)
    after = await visits(planning, command, 1)

    assert after.activation == command.activation + 1
    assert counts(planning, "snapshots_refused", reason=str(reason)) == 1
    assert set(reads.versions) >= {*range(1, head + 1)}, "everything is read"
    assert counts(planning, "quarantined") == 0
    await until(lambda: not writing())
    proven = open_routing(kept(planning), execution_id=planning.execution_id, rules=planning.rules)
    assert isinstance(proven, Settled), "a good one takes its place"
    stored = planning.log.streams[planning.execution_id].events
    assert proven.event_checksum == stored[kept(planning).stream_version - 1].checksum
    await planning.actors.stop()


async def test_what_failed_on_top_of_a_snapshot_is_read_again_though_nobody_asks_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = Planning(snapshot_events=EVERY)
    command = await long_one(planning)
    await planning.actors.stop()
    planning.actors = planning.planner()
    await planning.actors.claim(WORKER, [command.key])  # It is known because somebody asks, and not by its head.
    actor, head = planning.actors._actors[planning.execution_id], len(planning.events())

    with monkeypatch.context() as patch:
        patch.setattr(TurnPlanner, "for_asks", failing)
        asking = asyncio.ensure_future(planning.actors.complete(WORKER, command.key, ok(), wants_next=True))
        await until(lambda: counts(planning, "snapshots_refused", reason=str(Refusal.MISLEADING)) == 1)
        asking.cancel()

    await until(lambda: actor.known_version >= head)
    planning.actors.let_go_of_ended()
    assert planning.actors.known_version(planning.execution_id) == head, "it is open, and not forgotten"
    await planning.actors.stop()


def failing(*_: object) -> Turn:
    raise RuntimeError("a state that cannot be")


@pytest.mark.parametrize("failure", [Unavailable("api is away"), NoetlError("it knows no such method")])
async def test_snapshots_that_cannot_be_had_cost_reading_and_set_nothing_aside(failure: NoetlError) -> None:
    planning = Planning(snapshot_events=EVERY)
    command = await long_one(planning)
    planning.snapshots.failure = failure

    await goes_on(planning, command)

    assert counts(planning, "snapshots_refused", reason="unavailable") == 1
    assert counts(planning, "quarantined") == 0


async def test_a_failure_to_write_is_counted_and_not_repeated_at_once() -> None:
    planning = Planning(snapshot_events=EVERY)
    planning.snapshots.failure = Unavailable("api is away")
    command = await long_one(planning, times=8)
    assert counts(planning, "snapshots_written", outcome="failed") == 1
    planning.snapshots.failure = None

    command = await visits(planning, command, 1)
    await until(lambda: not writing())
    assert planning.snapshots.kept == {}, "not yet"

    await visits(planning, command, EVERY // EVENTS_A_VISIT)
    await until(lambda: not writing())
    assert counts(planning, "snapshots_written", outcome="written") == 1
    await planning.actors.stop()


async def test_one_that_is_too_large_is_not_written_and_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing_snapshots, "MAX_BYTES", 100)
    planning = Planning(snapshot_events=EVERY)

    await long_one(planning, times=8)

    assert counts(planning, "snapshots_written", outcome="too_large") == 1
    assert planning.snapshots.kept == {}
    await planning.actors.stop()


async def test_a_turn_does_not_wait_for_what_is_being_written_and_the_newest_is_written_next() -> None:
    planning = Planning(snapshot_events=EVERY)
    keep, goes_through = planning.snapshots.keep, asyncio.Event()
    begun: list[int] = []

    async def slowly(snapshot: RoutingSnapshot, **options: Any) -> bool:
        begun.append(snapshot.stream_version)
        await goes_through.wait()
        return await keep(snapshot, **options)

    planning.snapshots.keep = slowly  # type: ignore[method-assign]  # it takes its time
    await planning.start(POLL, n=0)

    await visits(planning, await planning.claim("poll"), 40)

    assert len(begun) == 1, "one at a time"
    goes_through.set()
    await until(lambda: not writing())
    assert len(begun) == 2, "those between are not wanted any more"
    assert kept(planning).stream_version > len(planning.events()) - EVERY - EVENTS_A_VISIT
    await planning.actors.stop()


async def test_a_planner_that_was_deposed_leaves_nothing_and_says_so() -> None:
    planning = Planning(snapshot_events=EVERY)
    planning.snapshots.failure = Fenced(role="planner", shard=1, epoch=0, current=1)

    await long_one(planning, times=8)

    assert counts(planning, "snapshots_written", outcome="fenced") == 1
    assert planning.snapshots.kept == {}
    await planning.actors.stop()


async def test_an_execution_that_has_ended_leaves_nothing() -> None:
    planning = Planning(snapshot_events=EVERY)
    planning.snapshots.failure = Unavailable("api is away")
    await long_one(planning, times=8)
    planning.snapshots.failure = None

    await planning.append(ExecutionCancelled(reason="enough", cancelled_by="test"), key=END_KEY)
    actor = planning.actors._actors[planning.execution_id]
    await until(lambda: actor.is_over)

    assert planning.snapshots.kept == {}
    assert counts(planning, "snapshots_written", outcome="written") == 0
    await planning.actors.stop()


async def test_all_of_them_may_be_gone_at_any_time() -> None:
    planning = Planning(snapshot_events=EVERY)
    await planning.start(POLL, n=0)
    command = await planning.claim("poll")
    for times in (3, 11, 0, 7, 30):
        command = await visits(planning, command, times)
        planning.snapshots.kept.clear()
        await planning.replace_planner()

    command = await visits(planning, command, 1)

    assert command.activation == 53
    await planning.actors.stop()


async def test_names_that_an_expression_lists_stand_in_the_same_order_for_the_next_owner() -> None:
    planning = await Planning(snapshot_events=EVERY).start(ORDERED)
    command = await visits(planning, await planning.claim("first"), 100)
    await until(lambda: not writing())
    await planning.replace_planner()

    await planning.actors.complete(WORKER, command.key, ok(last=True), wants_next=False)

    assert counts(planning, "snapshots_used") == 1
    assert planning.entered()[-1] == "right"
    await planning.actors.stop()


async def test_a_thread_makes_them_while_turns_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = InMemoryShardLeases()
    log = InMemoryEventLog(leases=leases)
    threads: list[threading.Thread] = []

    def noted(settled: Settled, *, rules: str) -> RoutingSnapshot | None:
        threads.append(threading.current_thread())
        return take_routing(settled, rules=rules)

    monkeypatch.setattr("noetl_planner.application.routing_snapshots.take_routing", noted)
    routing = KeepRouting(
        InMemoryRoutingSnapshots(log, leases),
        rules="r",
        every_events=EVERY,
        fence=lambda shard: Fence(role="planner", shard=shard, epoch=0),
        metrics=PlannerMetrics(MetricSet()),
    )

    routing.offer(Settled(state=empty(1), event_checksum=""), shard=0)
    await until(lambda: not writing())
    await routing.close()

    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
