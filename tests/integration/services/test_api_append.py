from __future__ import annotations

import asyncio
from typing import Any

import pytest
from noetl_core.append import AppendRequest, Fence, Hint, StreamAppend, StreamStart
from noetl_core.envelope import Draft
from noetl_core.errors import Fenced, InvalidInput, NotFound, NotPermitted, VersionConflict
from noetl_core.ports.event_log import Scope
from noetl_core.ports.leases import Replica
from noetl_core.sharding import shard_of
from noetl_testkit.compliance.event_log import ACME, chain_holds, history, new_id, note, request, start


async def test_two_hundred_concurrent_appends_from_several_clients_leave_no_gap(api: Any) -> None:
    clients = [(await api.as_("service")).events for _ in range(4)]
    execution_id = await start(clients[0])

    outcomes = await asyncio.gather(
        *(clients[n % 4].append(request(execution_id, note(f"k{n}", meta={"n": n}))) for n in range(200))
    )

    events = await history(clients[0], execution_id)
    assert chain_holds(events)
    assert [event.stream_version for event in events] == list(range(1, 202))
    assert sorted(one.event.stream_version for (one,) in outcomes) == list(range(2, 202))
    assert {str(event.envelope().meta.get("n", "start")) for event in events} == {"start", *map(str, range(200))}


async def test_one_key_from_twenty_callers_is_one_event(api: Any) -> None:
    clients = [(await api.as_("service")).events for _ in range(20)]
    execution_id = await start(clients[0])

    outcomes = await asyncio.gather(*(client.append(request(execution_id, note("once"))) for client in clients))

    assert sum(not one.duplicate for (one,) in outcomes) == 1
    assert len(await history(clients[0], execution_id)) == 2


async def test_a_request_over_streams_is_atomic_and_names_the_guard_that_refused_it(api: Any) -> None:
    log = (await api.as_("service")).events
    one, other = await start(log), await start(log)
    both = AppendRequest(
        tenant_id="acme",
        organization_id="ops",
        streams=(
            StreamAppend(execution_id=one, drafts=(note("a"),)),
            StreamAppend(execution_id=other, drafts=(note("b"),), expected_stream_version=9),
        ),
    )

    with pytest.raises(VersionConflict) as refusal:
        await log.append(both)

    assert (refusal.value.expected, refusal.value.current) == (9, 1)
    assert len(await history(log, one)) == len(await history(log, other)) == 1


async def test_a_deposed_owner_is_fenced(api: Any) -> None:
    service = await api.as_("service")
    execution_id = await start(service.events)
    shard = shard_of(execution_id, 64)
    held = await service.shards.hold(
        Replica(role="planner", instance="p", incarnation="1", address="here"), lease_seconds=30
    )
    fence = Fence(role="planner", shard=shard, epoch=held.leases[shard].epoch)
    await service.events.append(request(execution_id, note("a"), fence=fence))
    await service.shards.hold(Replica(role="planner", instance="p", incarnation="2", address="there"), lease_seconds=30)

    with pytest.raises(Fenced):
        await service.events.append(request(execution_id, note("b"), fence=fence))

    assert len(await history(service.events, execution_id)) == 2


async def test_a_service_says_for_whom_it_acts(api: Any) -> None:
    log = (await api.as_("service")).events
    nobody = AppendRequest(
        tenant_id="", organization_id="", streams=(StreamAppend(execution_id=new_id(), drafts=(note("a"),)),)
    )

    with pytest.raises(InvalidInput):
        await log.append(nobody)


async def test_a_writer_appends_its_own_events_under_keys_of_its_own(api: Any) -> None:
    execution_id = await start((await api.as_("service")).events)
    ada = (await api.as_("ada")).events

    (appended,) = await ada.append(request(execution_id, note("execution/end", meta={"n": 1}), producer="somebody"))

    envelope = appended.event.envelope()
    assert envelope.idempotency_key == "user/execution/end"
    assert envelope.producer == "urn:noetl:user:ada"
    assert not (await ada.read(None, execution_id)).terminal


@pytest.mark.parametrize(
    ("draft", "more", "error"),
    [
        (Draft(event_type="command.issued", idempotency_key="k"), {}, NotPermitted),
        (Draft(event_type="playbook.completed", idempotency_key="execution/end"), {}, NotPermitted),
        (note("k", aggregate_type="command", aggregate_id="c"), {}, NotPermitted),
        (note("k"), {"fence": Fence(role="planner", shard=0, epoch=0)}, NotPermitted),
        (note("k"), {"asked_by": Fence(role="reaper", shard=0, epoch=0)}, NotPermitted),
        (note("k"), {"hints": (Hint(subject="noetl.work.a.b", body=b"", execution_id=1),)}, NotPermitted),
        (note("k"), {"start": StreamStart()}, NotPermitted),
        (note("k", meta={"decided_through": 7}), {}, InvalidInput),
        (note(""), {}, InvalidInput),
    ],
)
async def test_a_writer_may_not_write_what_belongs_to_noetl(
    api: Any, draft: Draft, more: dict[str, Any], error: type[Exception]
) -> None:
    execution_id = await start((await api.as_("service")).events)
    ada = (await api.as_("ada")).events

    with pytest.raises(error):
        await ada.append(request(execution_id, draft, **more))

    assert len(await history(ada, execution_id)) == 1


async def test_a_reader_reads_and_does_not_write(api: Any) -> None:
    execution_id = await start((await api.as_("service")).events)
    rita = (await api.as_("rita")).events

    with pytest.raises(NotPermitted):
        await rita.append(request(execution_id, note("k")))

    assert (await rita.read(None, execution_id)).head_version == 1


@pytest.mark.parametrize("stranger", ["rival", "sam"])
async def test_other_tenants_and_organizations_see_nothing(api: Any, stranger: str) -> None:
    execution_id = await start((await api.as_("service")).events)
    theirs = Scope(
        tenant_id="rival" if stranger == "rival" else "acme",
        organization_id="ops" if stranger == "rival" else "sales",
    )
    events = (await api.as_(stranger)).events

    for attempt in (
        events.read(None, execution_id),
        events.read(theirs, execution_id),
        events.append(request(execution_id, note("k"), scope=theirs)),
        anext(events.watch(None, execution_id, timeout=10)),
        anext(events.read_all(None, execution_id)),
    ):
        with pytest.raises(NotFound) as refusal:
            await attempt
        assert refusal.value.code == "execution.not_found"
    for attempt in (events.read(ACME, execution_id), events.append(request(execution_id, note("k")))):
        with pytest.raises(NotPermitted):
            await attempt


async def test_only_services_see_heads_and_leases(api: Any) -> None:
    service, ada = await api.as_("service"), await api.as_("ada")
    execution_id = await start(service.events)
    shard = shard_of(execution_id, 64)
    asked = {"moved_since": None, "after": None, "open_only": True, "limit": 10}

    page = await service.events.moved_heads([shard], **asked)
    listed = await service.shards.list_shards("planner")
    installation = await service.shards.installation()

    assert [head.execution_id for head in page.heads] == [execution_id]
    assert len(listed) == installation.shard_count == 64
    replica = Replica(role="planner", instance="p", incarnation="1", address="here")
    for attempt in (
        ada.events.moved_heads([shard], **asked),
        ada.shards.list_shards("planner"),
        ada.shards.installation(),
        ada.shards.hold(replica, lease_seconds=30),
        ada.shards.release(replica),
    ):
        with pytest.raises(NotPermitted):
            await attempt


async def test_a_long_history_is_read_in_pages_and_as_a_stream(api: Any) -> None:
    log = (await api.as_("service")).events
    execution_id = await start(log)
    for hundreds in range(3):
        await log.append(request(execution_id, *(note(f"{hundreds}/{n}") for n in range(500))))

    streamed = [event async for event in log.read_all(None, execution_id)]
    part = [event.stream_version async for event in log.read_all(None, execution_id, from_version=700, to_version=1300)]

    assert chain_holds(tuple(streamed))
    assert len(streamed) == 1501
    assert part == list(range(700, 1301))
    with pytest.raises(InvalidInput):
        await log.read(None, execution_id, limit=1001)
