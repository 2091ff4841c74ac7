"""What keeps a planner honest between turns: heads, repeated hints, limits of a turn, answers when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.append import Appended, AppendRequest, Fence, Hint, StreamAppend, StreamStart
from noetl_core.catalog import to_draft
from noetl_core.errors import NotOwner
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.ports.commands import CommandKey, Worker
from noetl_core.ports.event_log import Scope
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.entrypoints.head_sweep import HeadSweep, RepeatedHints
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until

ADA = Worker(worker_id="ada")
LATER = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10)
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: upkeep}
workflow:
- step: a
  tool: {kind: noop}
  next: {arcs: [{step: b, when: "{{ now() >= '2026-01-01T00:10' }}"}]}
- {step: b, tool: {kind: noop}}
"""
DONE: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}


class SlowLog(InMemoryEventLog):
    """Appends wait until the test lets them go, once it has told them to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        if not self.gate.is_set():
            self.waiting.set()
        await self.gate.wait()
        return await super().append(request)


class Planning:
    """A planner over an in-memory log, with one execution whose first command is issued."""

    def __init__(self) -> None:
        self.log = SlowLog()
        self.catalog = InMemoryCatalog()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        metrics = PlannerMetrics(MetricSet())
        load = LoadPlan(PinnedPlaybooks(self.catalog), InMemoryPayloadStore(), max_attempts=3)
        rules = TurnRules(lease_seconds=45.0, now=lambda: self.now, work_subject=lambda pool, kind: "noetl.work.x.y")

        def make(execution_id: int, shard: int) -> Actor:
            return Actor(
                execution_id,
                shard=shard,
                log=self.log,
                load_plan=load,
                rules=rules,
                fence=lambda shard: Fence(role="planner", shard=shard, epoch=0),
                producer="urn:test",
                metrics=metrics,
            )

        self.actors = Actors(
            shard_count=64, owns=lambda shard: True, owner_address=lambda shard: None, make_actor=make, metrics=metrics
        )

    async def start(self) -> CommandKey:
        entry = (await self.catalog.register(Scope(tenant_id="t", organization_id="o"), PLAYBOOK)).entry
        execution_id = self.log.next_id()
        first = PlaybookInitialized(path=entry.path, version=1, catalog_id=entry.catalog_id, payload_ref=None)
        stream = StreamAppend(
            execution_id=execution_id,
            drafts=(to_draft(first, idempotency_key="execution/start"),),
            start=StreamStart(),
        )
        await self.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))
        self.actors.expect(execution_id, 1, terminal=False)
        await until(lambda: self.issued(execution_id))
        return CommandKey(execution_id=execution_id, command_id=self.issued(execution_id)[0])

    def issued(self, execution_id: int) -> list[str]:
        events = [event.envelope() for event in self.log.streams[execution_id].events]
        return [event.command_id for event in events if event.event_type == "command.issued"]


async def test_now_in_a_condition_is_when_the_step_ended_and_stands_in_the_log() -> None:
    planning = Planning()
    key = await planning.start()
    await planning.actors.claim(ADA, [key])
    planning.now = LATER

    completion = await planning.actors.complete(ADA, key, DONE, wants_next=True)

    assert completion.next is not None
    assert completion.next.step == "b"
    events = [event.envelope() for event in planning.log.streams[key.execution_id].events]
    assert {event.event_time for event in events[-7:]} == {LATER}
    await planning.actors.stop()


async def test_more_asks_than_fit_into_one_append_are_all_answered() -> None:
    planning = Planning()
    key = await planning.start()
    await planning.actors.claim(ADA, [key])

    beats = await asyncio.gather(*(planning.actors.heartbeat(ADA, [key]) for _ in range(1100)))

    assert all(not beat.lost and not beat.unanswered for beat in beats)
    await planning.actors.stop()


async def test_one_ask_that_is_refused_does_not_take_the_others_with_it() -> None:
    planning = Planning()
    key = await planning.start()
    (claimed,) = await planning.actors.claim(ADA, [key])
    assert claimed.command is not None
    huge = {**DONE, "context": {"select": {"/x": "y" * 70_000}}}

    beat, refused = await asyncio.gather(
        planning.actors.heartbeat(ADA, [key]),
        planning.actors.complete(ADA, key, huge, wants_next=False),
        return_exceptions=True,
    )

    assert not isinstance(beat, BaseException)
    assert not beat.unanswered
    assert isinstance(refused, Exception)
    await planning.actors.stop()


async def test_whoever_waits_for_a_turn_under_way_is_answered_when_the_planner_stops() -> None:
    planning = Planning()
    key = await planning.start()
    planning.log.gate.clear()
    waiting = asyncio.create_task(planning.actors.complete(ADA, key, DONE, wants_next=False))
    claiming = asyncio.create_task(planning.actors.claim(ADA, [key]))
    await planning.log.waiting.wait()

    await planning.actors.stop()

    with pytest.raises(NotOwner):
        await asyncio.wait_for(waiting, 60)
    (outcome,) = await asyncio.wait_for(claiming, 60)
    assert outcome.command is None


async def test_a_shard_that_was_lost_for_a_moment_is_listed_from_the_beginning() -> None:
    planning = Planning()
    key = await planning.start()
    sweep = HeadSweep(planning.log, planning.actors, owned=lambda: range(64))
    await sweep()
    assert len(list(planning.actors.hints_for_claimable())) == 1

    sweep.forget(range(64))
    await planning.actors.drop_shards(range(64))
    await sweep()

    await until(lambda: list(planning.actors.hints_for_claimable()))
    assert key.execution_id in planning.log.streams
    await planning.actors.stop()


def rounds_sent(rounds: int, hints: Sequence[Hint]) -> list[int]:
    repeated = RepeatedHints()
    return [number for number in range(rounds) if repeated.due(hints)]


def test_hints_are_repeated_after_pauses_that_double() -> None:
    hint = Hint(subject="s", body=b"{}", execution_id=1)

    assert rounds_sent(70, [hint]) == [1, 2, 4, 8, 16, 32, 64]
    assert len(rounds_sent(2000, [hint])) == 12


def test_a_command_that_was_claimed_is_forgotten_and_a_new_one_starts_anew() -> None:
    first, second = (Hint(subject="s", body=body, execution_id=1) for body in (b"1", b"2"))
    repeated = RepeatedHints()
    repeated.due([first])
    assert repeated.due([first]) == [(first, 1)]

    assert repeated.due([second]) == []
    assert repeated.due([second]) == [(second, 1)]
