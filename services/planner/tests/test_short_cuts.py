"""What reaches planner and workers ahead of the bus: told once or twice or never, the same happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from noetl_contracts.messages import pack_events
from noetl_contracts.subjects import event_subject
from noetl_core.append import Appended, AppendRequest, Fence, Hint, PreparedRequest, StreamAppend, StreamStart
from noetl_core.catalog import to_draft
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NotFound, NotOwner, Unavailable
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.journal import Journal
from noetl_core.payloads import PayloadRef
from noetl_core.ports.bus import Delivery, Message
from noetl_core.ports.event_log import Scope
from noetl_core.ports.steering import SteerAction, Steered
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.application.wake_workers import MAX_WAITING, WakeWorkers
from noetl_planner.entrypoints.event_consumer import hand_over
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_testkit.memory.bus import InMemoryBus
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: short}
workflow:
- {step: a, tool: {kind: noop}}
"""


class CountedReads(InMemoryPayloadStore):
    reads = 0

    async def get(self, ref: PayloadRef) -> bytes:
        self.reads += 1
        return await super().get(ref)


class Start(NamedTuple):
    execution_id: int
    prepared: PreparedRequest
    at: datetime
    first: StoredEvent


class Planning:
    """A planner over an in-memory log that is told of nothing but by notices."""

    def __init__(self, *, owns: bool = True) -> None:
        self.payloads = CountedReads()
        self.log = InMemoryEventLog()
        self.catalog = InMemoryCatalog()
        self.hinted: list[Hint] = []
        self.counted = MetricSet()
        metrics = PlannerMetrics(self.counted)
        load = LoadPlan(PinnedPlaybooks(self.catalog), self.payloads, max_attempts=3)
        rules = TurnRules(
            lease_seconds=45.0, now=lambda: datetime.now(UTC), work_subject=lambda pool, kind: "noetl.work.x.y"
        )

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
                on_hints=self.hinted.extend,
            )

        self.actors = Actors(
            shard_count=64,
            owns=lambda shard: owns,
            owner_address=lambda shard: "elsewhere:1",
            make_actor=make,
            metrics=metrics,
        )

    async def start(self, workload: bytes | None = None) -> tuple[int, StoredEvent]:
        start = await self.prepare(workload)
        await self.log.commit([start.prepared], at=start.at)
        return start.execution_id, start.first

    async def prepare(self, workload: bytes | None = None) -> Start:
        """A start as it is about to be committed."""
        ref = None
        if workload is not None:
            ref = await self.payloads.put(
                tenant_id="t", organization_id="o", data=workload, media_type="application/json"
            )
        entry = (await self.catalog.register(Scope(tenant_id="t", organization_id="o"), PLAYBOOK)).entry
        execution_id = self.log.next_id()
        started = PlaybookInitialized(
            path=entry.path, version=entry.version, catalog_id=entry.catalog_id, payload_ref=ref
        )
        draft = to_draft(started, idempotency_key="execution/start")
        stream = StreamAppend(execution_id=execution_id, drafts=(draft,), start=StreamStart())
        prepared = self.log.prepare(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))
        at = datetime.now(UTC)
        foreseen = self.log.foreseen(prepared, at=at)
        assert foreseen is not None
        return Start(execution_id, prepared, at, foreseen[0].event)

    def unfounded(self) -> float:
        return self.counted.value("noetl_planner_unfounded_notices_total")

    def is_let_go(self, execution_id: int) -> bool:
        self.actors.let_go_of_ended()
        return self.actors.known_version(execution_id) == 0

    def types(self, execution_id: int) -> list[str]:
        return [event.envelope().event_type for event in self.log.streams[execution_id].events]


async def test_a_notice_is_enough_to_decide_and_the_bus_adds_nothing() -> None:
    planning = Planning()
    execution_id, first = await planning.start()

    await planning.actors.notice(execution_id, [first])
    await until(lambda: "command.issued" in planning.types(execution_id), seconds=30)
    await planning.actors.notice(execution_id, [first])
    planning.actors.take(execution_id, first)
    await until(lambda: planning.actors.known_version(execution_id) == len(planning.types(execution_id)), seconds=30)

    assert planning.types(execution_id).count("command.issued") == 1
    await planning.actors.stop()


@pytest.mark.parametrize(("told", "reads"), [(b'{"who":"Ada"}', 0), (b'{"who":"Eve"}', 1), (b"", 1)])
async def test_variables_that_come_with_a_notice_are_not_read_if_they_are_the_right_ones(
    told: bytes, reads: int
) -> None:
    planning = Planning()
    execution_id, first = await planning.start(b'{"who":"Ada"}')

    await planning.actors.notice(execution_id, [first], workload=told)
    await until(lambda: "command.issued" in planning.types(execution_id), seconds=30)

    assert planning.payloads.reads == reads
    await planning.actors.stop()


async def test_a_start_that_was_told_of_and_never_came_is_forgotten() -> None:
    planning = Planning()
    start = await planning.prepare()

    await planning.actors.notice(start.execution_id, [start.first])
    await until(planning.unfounded, seconds=30)
    await until(lambda: planning.is_let_go(start.execution_id), seconds=30)

    assert planning.actors.quarantined() == {}
    assert start.execution_id not in planning.log.streams
    await planning.actors.stop()


async def test_a_start_that_comes_later_than_what_was_told_of_it_is_decided_when_the_bus_brings_it() -> None:
    planning = Planning()
    start = await planning.prepare()
    await planning.actors.notice(start.execution_id, [start.first])
    await until(planning.unfounded, seconds=30)

    await planning.log.commit([start.prepared], at=start.at)
    planning.actors.take(start.execution_id, start.first)
    await until(lambda: "command.issued" in planning.types(start.execution_id), seconds=30)

    assert planning.types(start.execution_id).count("command.issued") == 1
    await planning.actors.stop()


def by_the_bus(planning: Planning, start: Start) -> None:
    body, headers = pack_events([start.first], "")
    subject = event_subject(tenant_id="t", organization_id="o", execution_id=start.execution_id, shard=0)
    delivery = Delivery(subject=subject, body=body, headers=headers, receipt="")
    hand_over(delivery, planning.actors, PlannerMetrics(MetricSet()))


def by_a_look_at_heads(planning: Planning, start: Start) -> None:
    planning.actors.expect(start.execution_id, 1, terminal=False)


@pytest.mark.parametrize("told", [by_the_bus, by_a_look_at_heads])
async def test_a_start_that_is_published_before_its_refusal_arrives_is_read_from_the_log(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[Planning, Start], None]
) -> None:
    planning = Planning()
    start = await planning.prepare()
    append, refused = planning.log.append, asyncio.Event()

    async def overtaken_by_the_bus(request: AppendRequest) -> tuple[Appended, ...]:
        if refused.is_set():
            return await append(request)
        refused.set()
        await planning.log.commit([start.prepared], at=start.at)
        told(planning, start)
        raise NotFound("execution", start.execution_id)

    monkeypatch.setattr(planning.log, "append", overtaken_by_the_bus)
    await planning.actors.notice(start.execution_id, [start.first])
    await refused.wait()
    await until(lambda: "command.issued" in planning.types(start.execution_id), seconds=30)

    assert planning.unfounded() == 1
    assert planning.types(start.execution_id).count("command.issued") == 1
    await planning.actors.stop()


async def test_whoever_asks_for_what_is_hearsay_is_answered_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning()
    start = await planning.prepare()
    append = planning.log.append
    pausing: list[asyncio.Task[Steered]] = []

    async def committed_meanwhile(request: AppendRequest) -> tuple[Appended, ...]:
        if pausing:
            return await append(request)
        await planning.log.commit([start.prepared], at=start.at)
        pause = planning.actors.steer(start.execution_id, SteerAction.PAUSE, by="ada", reason="")
        pausing.append(asyncio.create_task(pause))
        await asyncio.sleep(0)
        raise NotFound("execution", start.execution_id)

    monkeypatch.setattr(planning.log, "append", committed_meanwhile)
    await planning.actors.notice(start.execution_id, [start.first])
    await until(lambda: pausing and pausing[0].done(), seconds=30)

    assert pausing[0].result().status == "PAUSED"
    await planning.actors.stop()


async def test_what_cannot_be_folded_harms_its_own_execution_only(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning()
    execution_id, first = await planning.start()
    accept, seen = Journal.accept, list[bool]()

    def fails_once(journal: Journal, events: Sequence[StoredEvent]) -> None:
        seen.append(True)
        if len(seen) == 1:
            raise RuntimeError("cannot fold that")
        accept(journal, events)

    monkeypatch.setattr(Journal, "accept", fails_once)
    append, strangers = planning.log.append, list[int]()

    async def looked_at(request: AppendRequest) -> tuple[Appended, ...]:
        appended = await append(request)
        asyncio.get_running_loop().call_soon(lambda: strangers.append(len(list(planning.actors.states()))))
        return appended

    monkeypatch.setattr(planning.log, "append", looked_at)
    await planning.actors.notice(execution_id, [first])

    await until(lambda: planning.actors.known_version(execution_id) == len(planning.types(execution_id)), seconds=30)
    assert planning.types(execution_id).count("command.issued") == 1
    assert strangers == [1]
    await planning.actors.stop()


async def test_what_was_told_is_not_believed_after_an_outage_in_which_it_did_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = Planning()
    start = await planning.prepare()

    async def away(request: AppendRequest) -> tuple[Appended, ...]:
        raise Unavailable("nobody there")

    monkeypatch.setattr(planning.log, "append", away)
    await planning.actors.notice(start.execution_id, [start.first])
    await until(planning.unfounded, seconds=30)

    assert planning.actors.quarantined() == {}
    await planning.actors.stop()


async def test_an_execution_that_vanishes_after_it_was_proven_is_no_hearsay(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning()
    execution_id, first = await planning.start()
    await planning.actors.notice(execution_id, [first])
    await until(lambda: planning.actors.known_version(execution_id) == len(planning.types(execution_id)), seconds=30)

    refused = asyncio.Event()

    async def gone(scope: Scope | None, execution_id: int, **options: object) -> None:
        refused.set()
        raise NotFound("execution", execution_id)

    monkeypatch.setattr(planning.log, "read", gone)
    planning.actors.expect(execution_id, 99, terminal=False)
    await refused.wait()
    await asyncio.sleep(0)

    assert planning.unfounded() == 0
    assert planning.actors.known_version(execution_id) == len(planning.types(execution_id))
    await planning.actors.stop()


async def test_who_does_not_own_the_execution_names_the_owner() -> None:
    planning = Planning(owns=False)
    execution_id, first = await planning.start()

    with pytest.raises(NotOwner) as elsewhere:
        await planning.actors.notice(execution_id, [first])

    assert elsewhere.value.address == "elsewhere:1"


async def test_workers_are_woken_under_the_id_that_the_outbox_uses() -> None:
    planning = Planning()
    execution_id, first = await planning.start()

    await planning.actors.notice(execution_id, [first])
    await until(lambda: planning.hinted, seconds=30)

    assert [hint.message_id for hint in planning.hinted] == [hint.message_id for hint in planning.log.hints]
    assert all(hint.message_id for hint in planning.hinted)
    await planning.actors.stop()


def hints(*numbers: int) -> list[Hint]:
    return [Hint(subject="noetl.work.x.y", body=b"%d" % n, execution_id=1, message_id=f"m{n}") for n in numbers]


async def test_hints_are_published_once_whoever_is_first() -> None:
    bus = InMemoryBus()
    wake = WakeWorkers(bus)

    wake(hints(1, 2))
    wake(hints(3))
    await until(lambda: len(bus.published) == 3, seconds=30)
    await bus.publish_batch([Message(subject="noetl.work.x.y", message_id="m2", body=b"2")])

    assert [message.body for message in bus.published] == [b"1", b"2", b"3"]
    await wake.close()


async def test_a_bus_that_is_away_costs_nothing_but_this_way() -> None:
    bus = InMemoryBus()
    bus.away = True
    wake = WakeWorkers(bus)

    wake(hints(1))
    await until(lambda: wake.is_idle, seconds=30)
    bus.away = False
    wake(hints(2))
    await until(lambda: bus.published, seconds=30)

    assert [message.body for message in bus.published] == [b"2"]
    await wake.close()


async def test_what_piles_up_is_left_to_the_outbox() -> None:
    class Stuck(InMemoryBus):
        async def publish_batch(self, messages: Sequence[Message]) -> None:
            await asyncio.Event().wait()

    wake = WakeWorkers(Stuck())
    for number in range(3):
        wake(hints(*range(number * MAX_WAITING, (number + 1) * MAX_WAITING)))
        await asyncio.sleep(0)

    assert wake.waiting_count == MAX_WAITING
    await wake.close()
    assert wake.is_idle


async def test_hints_without_an_id_are_the_outboxs_alone() -> None:
    bus = InMemoryBus()
    wake = WakeWorkers(bus)

    wake([Hint(subject="noetl.work.x.y", body=b"1", execution_id=1)])

    assert wake.is_idle
    assert bus.published == []
