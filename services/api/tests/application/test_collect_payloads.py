"""Payloads that no event reaches are marked, put aside and deleted, each in its time; all others stay."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from noetl_api.application.collect_payloads import StoreIsShared, claim_payload_store
from noetl_api.application.collection_steps import LEAST_PATIENCE_SECONDS
from noetl_api.application.payload_survey import DocumentUnreadable
from noetl_core.append import END_KEY, AppendRequest, Fence, StreamAppend
from noetl_core.canonical import encode
from noetl_core.collection.documents import HOLDING_JSON, json_media_type
from noetl_core.errors import Fenced, InvalidInput, NotPermitted, Overloaded, Unavailable
from noetl_core.events import to_draft
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.ports.event_log import Scope
from noetl_core.ports.reachability import ScannedText
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.collecting import ADMIN, GRACE, SERVICE, Collecting
from noetl_testkit.memory.payloads import InMemoryPayloadStore

OTHERS = Scope(tenant_id="other", organization_id="ops")


@pytest.fixture
def collecting() -> Collecting:
    return Collecting()


async def test_what_nothing_refers_to_is_marked_withdrawn_and_swept(collecting: Collecting) -> None:
    kept, garbage = await collecting.put(b"kept"), await collecting.put(b"garbage")
    await collecting.tell(kept)
    collecting.wait()

    marked = await collecting.run()
    waiting = await collecting.run()
    collecting.wait()
    withdrawn = await collecting.run()
    is_readable_meanwhile = await collecting.payloads.get(garbage) == b"garbage"
    collecting.wait()
    swept = await collecting.run()
    idle = await collecting.run()

    assert (marked.marked, marked.marked_bytes, marked.withdrawn) == (1, 7, 0)
    assert (waiting.marked, waiting.waiting) == (0, 1)
    assert (withdrawn.withdrawn, withdrawn.swept, withdrawn.marked) == (1, 0, 0)
    assert is_readable_meanwhile
    assert (swept.swept, swept.swept_bytes) == (1, 7)
    assert not await collecting.is_there(garbage)
    assert await collecting.payloads.get(kept) == b"kept"
    assert (idle.unreferenced, idle.waiting, idle.collections) == (0, 0, ())
    assert collecting.told() == ["payload.marked", "payload.withdrawn", "payload.swept", "playbook.completed"]
    assert marked.collections == withdrawn.collections == swept.collections


async def test_a_dry_run_changes_nothing_and_says_what_would_be_done(collecting: Collecting) -> None:
    garbage = await collecting.put(b"garbage")
    await collecting.tell(await collecting.put(b"kept"))
    collecting.wait()

    dry = await collecting.run(apply=False)
    assert (dry.applied, dry.marked, dry.unreferenced_bytes) == (False, 1, 7)
    assert collecting.told() == []
    await collecting.run()
    collecting.wait()
    assert (await collecting.run(apply=False)).withdrawn == 1
    await collecting.run()
    collecting.wait()
    assert (await collecting.run(apply=False)).swept == 1

    assert await collecting.is_there(garbage)
    assert collecting.told() == ["payload.marked", "payload.withdrawn"]


async def test_what_is_young_is_left_alone(collecting: Collecting) -> None:
    await collecting.tell(await collecting.put(b"kept"))
    await collecting.put(b"on its way into an event")
    collecting.wait(GRACE - timedelta(minutes=1))

    report = await collecting.run()

    assert (report.unreferenced, report.young, report.marked) == (1, 1, 0)


async def test_what_is_referred_to_in_the_grace_period_survives(collecting: Collecting) -> None:
    ref = await collecting.put()
    await collecting.tell(await collecting.put(b"kept"))
    collecting.wait()
    await collecting.run()

    await collecting.tell(await collecting.put())
    collecting.wait()
    report = await collecting.run()

    assert (report.spared, report.withdrawn) == (1, 0)
    assert await collecting.payloads.get(ref) == b"bytes"
    assert collecting.told() == ["payload.marked", "payload.withdrawn", "playbook.completed"]


async def test_what_is_referred_to_after_it_was_put_aside_is_put_back(collecting: Collecting) -> None:
    ref = await collecting.put()
    await collecting.tell(await collecting.put(b"kept"))
    for _ in range(2):
        collecting.wait()
        await collecting.run()

    await collecting.tell(ref)  # by a writer that had found it before it was put aside
    assert await collecting.payloads.get(ref) == b"bytes"
    collecting.wait()
    report = await collecting.run()

    assert (report.restored, report.swept) == (1, 0)
    found = [one.sha256 async for one in collecting.payloads.find(tenant_id="acme", organization_id="ops")]
    assert ref.sha256 in found


async def test_references_in_playbooks_count(collecting: Collecting) -> None:
    ref = await collecting.put()
    collecting.scan.texts.append(ScannedText("acme", "ops", f"result_ref: {ref.uri}"))
    collecting.wait()

    assert (await collecting.run()).unreferenced == 0


async def test_a_service_collects_for_everybody_and_an_admin_for_his_own(collecting: Collecting) -> None:
    await collecting.tell(await collecting.put(b"kept"))
    await collecting.tell(await collecting.put(b"kept", OTHERS))
    await collecting.put(b"mine")
    await collecting.put(b"theirs", OTHERS)
    collecting.wait()

    own = await collecting.run(caller=ADMIN)
    all_of_them = await collecting.run(caller=SERVICE)

    assert (own.organizations, own.payloads, own.marked) == (1, 2, 1)
    assert (all_of_them.organizations, all_of_them.marked, all_of_them.waiting) == (2, 1, 1)


async def test_only_admins_collect_and_graces_have_limits(collecting: Collecting) -> None:
    writer = Caller(name="w", tenant_id="acme", organization_id="ops", role=Role.WRITER)
    with pytest.raises(NotPermitted):
        await collecting.run(caller=writer)
    for seconds in (1.0, -1.0, 1e12, float("nan")):
        with pytest.raises(InvalidInput):
            [one async for one in collecting.collector()(ADMIN, None, apply=True, grace_seconds=seconds)]


async def test_one_run_at_a_time(collecting: Collecting) -> None:
    await collecting.tell(await collecting.put(b"kept"))
    collector = collecting.collector()
    running = collector(ADMIN, None, apply=False)
    await anext(running)

    with pytest.raises(Overloaded):
        await anext(collector(ADMIN, None, apply=False))
    await running.aclose()  # type: ignore[attr-defined]
    assert (await anext(collector(ADMIN, None, apply=False))).events == 1


async def test_a_store_that_another_installation_uses_is_left_alone(collecting: Collecting) -> None:
    await collecting.payloads.claim("another log")

    with pytest.raises(StoreIsShared, match="another log"):
        await collecting.run(apply=False)


async def test_a_collection_that_somebody_ends_is_taken_up_by_the_next_one(collecting: Collecting) -> None:
    garbage, wanted = await collecting.put(b"garbage"), await collecting.put(b"wanted")
    for _ in range(2):
        await collecting.tell(await collecting.put(b"kept"))
        collecting.wait()
        (cycle,) = (await collecting.run()).collections
    ended = to_draft(ExecutionCancelled(reason="", cancelled_by="ada"), idempotency_key=END_KEY)
    stream = StreamAppend(execution_id=cycle, drafts=(ended,))
    await collecting.log.append(AppendRequest(tenant_id="acme", organization_id="ops", streams=(stream,)))
    await collecting.tell(wanted)

    too_soon = await collecting.run()
    collecting.wait()
    again = await collecting.run()
    for _ in range(2):
        collecting.wait()
        last = await collecting.run()

    assert (too_soon.marked, too_soon.restored) == (0, 0)
    assert (again.marked, again.restored, last.swept) == (1, 1, 1)
    assert not await collecting.is_there(garbage)
    assert await collecting.payloads.get(wanted) == b"wanted"


async def test_a_run_that_was_held_up_stops_before_it_acts_on_old_news(collecting: Collecting) -> None:
    garbage = await collecting.put(b"garbage")
    await collecting.tell(await collecting.put(b"kept"))
    collecting.wait()
    await collecting.run()
    collecting.wait()
    seconds = iter([0.0, *[max(GRACE.total_seconds() / 2, LEAST_PATIENCE_SECONDS) + 1] * 10])

    late = await collecting.run(clock=lambda: next(seconds))

    assert (late.withdrawn, late.collections) == (0, ())
    assert (await collecting.run()).withdrawn == 1
    assert await collecting.is_there(garbage)


async def test_many_payloads_are_several_collections(collecting: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_api.application.collect_payloads.MAX_LISTED", 10)
    for n in range(25):
        await collecting.put(b"garbage %d" % n)
    await collecting.tell(await collecting.put(b"kept"))
    collecting.wait()

    report = await collecting.run()

    assert (report.marked, len(report.collections)) == (25, 3)
    for _ in range(2):
        collecting.wait()
        last = await collecting.run()
    assert (last.swept, last.unreferenced) == (25, 0)


async def test_events_of_a_collection_are_small(collecting: Collecting) -> None:
    for n in range(500):
        await collecting.put(b"garbage %d" % n)
    await collecting.tell(await collecting.put(b"kept"))
    for _ in range(3):
        collecting.wait()
        await collecting.run()

    sizes = [len(event.body) for stream in collecting.log.streams.values() for event in stream.events]
    assert max(sizes) < 1_500
    assert (await collecting.run()).payloads == 1 + 1


async def test_lists_of_collections_are_themselves_reached(collecting: Collecting) -> None:
    await collecting.put(b"garbage")
    await collecting.tell(await collecting.put(b"kept"))
    for _ in range(6):
        collecting.wait()
        report = await collecting.run()

    assert report.unreferenced == 0
    assert report.payloads == 1 + 1, "equal lists are one payload"


async def test_what_a_document_refers_to_is_reached_if_an_event_reaches_the_document(collecting: Collecting) -> None:
    """As the result of a spark step does with its rows."""
    rows = [await collecting.put(b"rows %d" % n) for n in range(3)]
    text = encode({"rows": {"_chunks": [[ref.sha256, ref.bytes, 1, "text/plain"] for ref in rows[:2]]}})
    document = await collecting.put(b" " * 5_000_000 + text)
    await collecting.tell(replace(document, media_type=json_media_type(text)))
    collecting.wait()

    report = await collecting.run()

    assert (report.unreferenced, report.marked) == (1, 1)
    for _ in range(2):
        collecting.wait()
        await collecting.run()
    assert [await collecting.is_there(ref) for ref in rows] == [True, True, False]


async def test_a_document_that_is_gone_hides_nothing_and_a_damaged_one_stops_everything(collecting: Collecting) -> None:
    rows = await collecting.put(b"rows")
    document = await collecting.put(encode([rows.sha256]))
    await collecting.tell(replace(document, media_type=HOLDING_JSON))
    collecting.wait()
    store = cast(InMemoryPayloadStore, collecting.payloads)

    store.objects[document.uri] = b"damaged"
    with pytest.raises(DocumentUnreadable, match=document.uri):
        await collecting.run()
    del store.objects[document.uri]

    assert (await collecting.run()).marked == 1


async def test_a_store_that_is_away_or_hangs_keeps_nobody_from_starting(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noetl_api.application.collect_payloads.CLAIM_SECONDS", 0.01)

    class Away(InMemoryPayloadStore):
        async def claim(self, owner: str) -> frozenset[str]:
            raise Unavailable("away")

    class Hanging(InMemoryPayloadStore):
        async def claim(self, owner: str) -> frozenset[str]:
            await asyncio.Event().wait()
            raise AssertionError

    await claim_payload_store(Away(), collecting.leases)
    await claim_payload_store(Hanging(), collecting.leases)
    store = InMemoryPayloadStore()
    await claim_payload_store(store, collecting.leases)
    assert store.owners == {(await collecting.leases.installation()).log_generation}


async def test_who_was_deposed_begins_nothing_but_what_was_done_is_told(collecting: Collecting) -> None:
    await collecting.tell(await collecting.put(b"kept"))
    await collecting.put(b"garbage")
    deposed = Fence(role="reaper", shard=0, epoch=7)
    collecting.wait()
    with pytest.raises(Fenced):
        await collecting.run(caller=SERVICE, fence=deposed)
    begun_by_nobody = collecting.told()

    await collecting.run()
    collecting.wait()
    await collecting.run()
    collecting.wait()
    swept = await collecting.run(caller=SERVICE, fence=deposed)  # Its lease ended while the payloads were deleted.

    assert begun_by_nobody == []
    assert swept.swept == 1
    assert collecting.told() == ["payload.marked", "payload.withdrawn", "payload.swept", "playbook.completed"]
