"""Payloads that no event reaches, collected by a real api over a real log and a real directory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_core.append import StreamStart
from noetl_core.collection.report import CollectionReport
from noetl_core.errors import InvalidInput, NotPermitted, Rejected
from noetl_core.payloads import PayloadRef
from noetl_testkit.compliance.event_log import ACME, RIVAL, new_id, note, request
from noetl_testkit.until import until


@pytest.fixture
def store(tmp_path: Path) -> DirectoryPayloadStore:
    return DirectoryPayloadStore(tmp_path / "payloads")


@pytest.fixture
def api_values(api_values: dict[str, str]) -> dict[str, str]:
    """Grace periods that are over at once."""
    return {
        **api_values,
        "NOETL_PAYLOAD_GC_GRACE_SECONDS": "0.01",
        "NOETL_PAYLOAD_GC_MIN_GRACE_SECONDS": "0.01",
    }


async def stored(store: DirectoryPayloadStore, data: bytes, *, tenant: str = "acme") -> PayloadRef:
    return await store.put(tenant_id=tenant, organization_id="ops", data=data, media_type="application/json")


async def collected(client: Any, *, apply: bool = True, **options: Any) -> CollectionReport:
    reports: list[CollectionReport] = [one async for one in client.payloads.collect(None, apply=apply, **options)]
    return reports[-1]


def shows(client: Any, is_done: Callable[[CollectionReport], bool]) -> Callable[[], Awaitable[bool]]:
    async def run() -> bool:
        return is_done(await collected(client))

    return run


async def test_garbage_goes_and_what_events_refer_to_stays(api: Any, store: DirectoryPayloadStore) -> None:
    service, root = await api.as_("service"), await api.as_("root")
    kept, garbage = await stored(store, b"kept"), await stored(store, b"garbage")
    theirs = await stored(store, b"garbage", tenant="rival")
    told = note("start", payload_ref=kept)
    await service.events.append(request(new_id(), told, scope=ACME, start=StreamStart()))
    await service.events.append(request(new_id(), note("start"), scope=RIVAL, start=StreamStart()))

    await until(shows(root, lambda report: report.marked == 1))
    await until(shows(root, lambda report: report.withdrawn == 1))
    assert await store.get(garbage) == b"garbage"
    await until(shows(root, lambda report: report.swept == 1))

    assert not await store.exists(garbage)
    assert await store.get(kept) == b"kept"
    assert await store.get(theirs) == b"garbage"
    last = await collected(root, apply=False)
    assert (last.unreferenced, last.waiting, last.applied) == (0, 0, False)


async def test_each_step_is_an_event_of_an_execution_without_a_playbook(api: Any, store: DirectoryPayloadStore) -> None:
    service, root = await api.as_("service"), await api.as_("root")
    await stored(store, b"garbage")
    await service.events.append(request(new_id(), note("start"), scope=ACME, start=StreamStart()))
    collections: set[int] = set()

    async def is_swept() -> bool:
        report = await collected(root)
        collections.update(report.collections)
        return report.swept == 1

    await until(is_swept)

    (execution_id,) = collections
    view = (await root.http.get(f"/api/executions/{execution_id}")).json()
    events = (await root.http.get(f"/api/executions/{execution_id}/events")).json()["events"]
    assert [event["event_type"] for event in events] == [
        "payload.marked",
        "payload.withdrawn",
        "payload.swept",
        "playbook.completed",
    ]
    assert (view["path"], view["status"]) == ("noetl/payload-gc", "COMPLETED")


async def test_over_http_it_is_a_dry_run_unless_it_is_told_otherwise(api: Any, store: DirectoryPayloadStore) -> None:
    service, root, ada = await api.as_("service"), await api.as_("root"), await api.as_("ada")
    await stored(store, b"garbage")
    await service.events.append(request(new_id(), note("start"), scope=ACME, start=StreamStart()))

    async def is_old_enough() -> bool:
        return bool((await root.http.post("/api/payloads/collect")).json()["marked"] == 1)

    await until(is_old_enough)
    dry = (await root.http.post("/api/payloads/collect")).json()
    done = (await root.http.post("/api/payloads/collect", json={"apply": True})).json()

    assert (dry["applied"], dry["marked"], dry["collections"]) == (False, 1, [])
    assert (done["applied"], done["marked"], len(done["collections"])) == (True, 1, 1)
    assert (await ada.http.post("/api/payloads/collect")).status_code == 403
    assert (await root.http.post("/api/payloads/collect", json={"grace_seconds": 0.001})).status_code == 400


async def test_a_service_collects_for_everybody(api: Any, store: DirectoryPayloadStore) -> None:
    service, ada = await api.as_("service"), await api.as_("ada")
    for scope in (ACME, RIVAL):
        await stored(store, b"garbage", tenant=scope.tenant_id)
        await service.events.append(request(new_id(), note("start"), scope=scope, start=StreamStart()))

    swept = 0

    async def are_swept() -> bool:
        """Not necessarily in one run: one of them may have grown old enough before the other."""
        nonlocal swept
        report = await collected(service)
        swept += report.swept
        return swept == 2

    await until(are_swept)
    assert (await collected(service, apply=False)).organizations == 2
    with pytest.raises(NotPermitted):
        await collected(ada)
    with pytest.raises(InvalidInput):
        await collected(service, grace_seconds=0.001)


async def test_somebody_may_stop_a_collection(api: Any, store: DirectoryPayloadStore) -> None:
    service, root = await api.as_("service"), await api.as_("root")
    garbage = await stored(store, b"garbage")
    await service.events.append(request(new_id(), note("start"), scope=ACME, start=StreamStart()))
    begun: list[int] = []

    async def is_withdrawn() -> bool:
        report = await collected(root)
        begun.extend(report.collections)
        return report.withdrawn == 1

    await until(is_withdrawn)
    why = (await root.http.get(f"/api/executions/{begun[0]}/why")).json()
    cancelled = await root.http.post(f"/api/executions/{begun[0]}/cancel")

    assert [reason["kind"] for reason in why["reasons"]] == ["grace"]
    assert cancelled.status_code == 200
    await until(shows(root, lambda report: report.marked == 1))
    await until(shows(root, lambda report: report.swept == 1))
    assert not await store.exists(garbage)


async def test_a_store_that_two_installations_use_is_left_alone(api: Any, store: DirectoryPayloadStore) -> None:
    await store.claim("another log")

    with pytest.raises(Rejected) as refusal:
        await collected(await api.as_("root"), apply=False)

    assert refusal.value.code == "payload.store_shared"
