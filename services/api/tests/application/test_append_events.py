from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from noetl_api.application.append_events import AppendEvents
from noetl_api.application.ingest_events import IncomingEvent, IngestEvents
from noetl_core.append import END_KEY, Fence, Hint, StreamStart
from noetl_core.envelope import Draft
from noetl_core.errors import InvalidInput, NoetlError, NotFound, NotPermitted, VersionConflict
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.tracing import span
from noetl_testkit.compliance.event_log import history, note, request, start
from noetl_testkit.memory.event_log import InMemoryEventLog

ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.WRITER)
RITA = Caller(name="rita", tenant_id="acme", organization_id="ops", role=Role.READER)
SERVICE = Caller(name="planner", tenant_id="*", organization_id="*", role=Role.SERVICE)
RIVAL = Scope(tenant_id="rival", organization_id="ops")
HINT = Hint(subject="noetl.work.default.command", body=b"{}", execution_id=1)


@pytest.fixture
def log() -> InMemoryEventLog:
    return InMemoryEventLog()


@pytest.fixture
def append(log: InMemoryEventLog) -> AppendEvents:
    return AppendEvents(log)


@pytest.fixture
def ingest(append: AppendEvents) -> IngestEvents:
    keys = count(1)
    return IngestEvents(append, make_key=lambda: f"made-{next(keys)}")


@pytest.mark.parametrize(
    ("draft", "fields", "error"),
    [
        (Draft(event_type="command.issued", idempotency_key="k"), {}, NotPermitted),
        (Draft(event_type="playbook.completed", idempotency_key=END_KEY), {}, NotPermitted),
        (note("k", aggregate_type="frame", aggregate_id="f"), {}, NotPermitted),
        (note("k"), {"fence": Fence(role="planner", shard=0, epoch=0)}, NotPermitted),
        (note("k"), {"asked_by": Fence(role="reaper", shard=0, epoch=0)}, NotPermitted),
        (note("k"), {"hints": (HINT,)}, NotPermitted),
        (note("k"), {"start": StreamStart()}, NotPermitted),
        (note("k", meta={"loop_id": "l"}), {}, InvalidInput),
        (note("k", meta={"decided_through": 3}), {}, InvalidInput),
        (note(""), {}, InvalidInput),
        (note("k", meta={"business_object": {"type": "order"}}), {}, InvalidInput),
        (note("k", aggregate_type="business_object", aggregate_id="order/7"), {}, NotPermitted),
    ],
)
async def test_users_write_only_what_is_theirs(
    log: InMemoryEventLog, append: AppendEvents, draft: Draft, fields: dict[str, Any], error: type[NoetlError]
) -> None:
    execution_id = await start(log)

    with pytest.raises(error):
        await append(ADA, request(execution_id, draft, **fields))

    assert len(await history(log, execution_id)) == 1


async def test_a_users_key_cannot_take_one_that_noetl_needs(log: InMemoryEventLog, append: AppendEvents) -> None:
    execution_id = await start(log)

    await append(ADA, request(execution_id, note(END_KEY), note("decision/1/0")))

    keys = [event.envelope().idempotency_key for event in await history(log, execution_id)]
    assert keys == ["start", f"user/{END_KEY}", "user/decision/1/0"]


async def test_writers_of_a_business_object_are_guarded_by_its_version(
    log: InMemoryEventLog, append: AppendEvents
) -> None:
    execution_id = await start(log)
    order = {"business_object": {"type": "order", "id": "7", "patch": {"n": 1}}}
    (first,) = await append(ADA, request(execution_id, note("a", meta=order, expected_aggregate_version=0)))

    with pytest.raises(VersionConflict):
        await append(ADA, request(execution_id, note("b", meta=order, expected_aggregate_version=0)))

    envelope = first.event.envelope()
    assert (envelope.aggregate_type, envelope.aggregate_id) == ("business_object", "order/7")
    assert len(await history(log, execution_id)) == 2


async def test_a_service_writes_what_it_says(log: InMemoryEventLog, append: AppendEvents) -> None:
    execution_id = await start(log)
    issued = Draft(
        event_type="command.issued", idempotency_key="k", aggregate_type="command", aggregate_id="c", command_id="c"
    )

    await append(SERVICE, request(execution_id, issued, producer="urn:noetl:planner:0"))

    envelope = (await history(log, execution_id))[1].envelope()
    assert (envelope.idempotency_key, envelope.producer) == ("k", "urn:noetl:planner:0")


async def test_hints_go_only_where_workers_listen(log: InMemoryEventLog, append: AppendEvents) -> None:
    execution_id = await start(log)
    hint = Hint(subject="noetl.events.acme.ops.1.1", body=b"", execution_id=execution_id)

    with pytest.raises(InvalidInput):
        await append(SERVICE, request(execution_id, note("k"), hints=(hint,)))


async def test_readers_and_strangers_do_not_write(log: InMemoryEventLog, append: AppendEvents) -> None:
    execution_id = await start(log, scope=RIVAL)

    with pytest.raises(NotPermitted):
        await append(RITA, request(execution_id, note("k")))
    with pytest.raises(NotPermitted):
        await append(ADA, request(execution_id, note("k"), scope=RIVAL))
    with pytest.raises(NotFound):
        await append(ADA, request(execution_id, note("k")))


async def test_an_event_without_a_trace_belongs_to_the_callers(log: InMemoryEventLog, append: AppendEvents) -> None:
    execution_id = await start(log)

    with span("desk.test") as current:
        await append(ADA, request(execution_id, note("a"), note("b", trace="own")))

    trace_id = f"{current.get_span_context().trace_id:032x}"
    traces = [event.envelope().trace for event in await history(log, execution_id)]
    assert traces[1].split("-")[1] == trace_id
    assert traces[2] == "own"


async def test_a_batch_over_executions_is_answered_in_its_order(log: InMemoryEventLog, ingest: IngestEvents) -> None:
    one, other = await start(log), await start(log)
    batch = [
        IncomingEvent(execution_id=(one, other)[n % 2], draft=note("" if n < 2 else f"k{n}", meta={"n": n}))
        for n in range(6)
    ]

    appended = await ingest(ADA, None, batch)

    assert [(a.event.envelope().execution_id, a.event.envelope().meta["n"]) for a in appended] == [
        ((one, other)[n % 2], n) for n in range(6)
    ]
    keys = [event.envelope().idempotency_key for event in await history(log, one)]
    assert keys == ["start", "user/made-1", "user/k2", "user/k4"]


async def test_a_batch_is_all_or_nothing(log: InMemoryEventLog, ingest: IngestEvents) -> None:
    execution_id = await start(log)
    bad = Draft(event_type="step.enter", idempotency_key="x")

    with pytest.raises(NotPermitted):
        await ingest(
            ADA,
            None,
            [
                IncomingEvent(execution_id=execution_id, draft=note("a")),
                IncomingEvent(execution_id=execution_id, draft=bad),
            ],
        )
    with pytest.raises(InvalidInput):
        await ingest(ADA, None, [])

    assert len(await history(log, execution_id)) == 1
