"""What reaches planner and workers ahead of the bus: told once or twice or never, the same happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from noetl_core.append import AppendRequest, Fence, Hint, StreamAppend, StreamStart
from noetl_core.catalog import to_draft
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NotOwner
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.payloads import PayloadRef
from noetl_core.ports.bus import Message
from noetl_core.ports.event_log import Scope
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.application.wake_workers import MAX_WAITING, WakeWorkers
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


class Planning:
    """A planner over an in-memory log that is told of nothing but by notices."""

    def __init__(self, *, owns: bool = True) -> None:
        self.payloads = CountedReads()
        self.log = InMemoryEventLog()
        self.catalog = InMemoryCatalog()
        self.hinted: list[Hint] = []
        metrics = PlannerMetrics(MetricSet())
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
        (appended,) = await self.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))
        return execution_id, appended.event

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
