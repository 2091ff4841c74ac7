"""Payloads and lineage over gRPC and HTTP: to their owners, verified, and to nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.payload.names import payload_path
from noetl_core.append import StreamStart
from noetl_core.canonical import JsonObject
from noetl_core.envelope import Draft
from noetl_core.errors import Corrupt, InvalidInput, NotFound
from noetl_core.locator import result_locator
from noetl_core.payloads import PayloadRef
from noetl_testkit.compliance.event_log import ACME, new_id, note, request

LARGE = bytes(range(256)) * 20_000


@pytest.fixture
def store(tmp_path: Path) -> DirectoryPayloadStore:
    """Where the replica keeps its payloads, too."""
    return DirectoryPayloadStore(tmp_path / "payloads")


async def stored(store: DirectoryPayloadStore, data: bytes = LARGE, *, tenant: str = "acme") -> PayloadRef:
    return await store.put(tenant_id=tenant, organization_id="ops", data=data, media_type="application/json")


def reference(execution_id: int, step: str, ref: PayloadRef) -> JsonObject:
    ref_id = result_locator(execution_id=execution_id, step=step, result_id=ref.sha256[:16])
    return {
        "ref_id": str(ref_id),
        "type": "object_store",
        "uri": ref.uri,
        "sha256": ref.sha256,
        "media_type": ref.media_type,
        "bytes": ref.bytes,
    }


async def executed(service: Any, store: DirectoryPayloadStore, *steps: str) -> tuple[int, list[JsonObject]]:
    """An execution whose steps made their results from each other."""
    execution_id = new_id()
    drafts, references = [], list[JsonObject]()
    for number, step in enumerate(steps):
        ref = await stored(store, f'{{"step":"{step}"}}'.encode())
        result = {
            "status": "ok",
            "reference": reference(execution_id, step, ref),
            "parent_ref": {"ref_id": references[-1]["ref_id"]} if references else None,
            "context": None,
        }
        references.append(reference(execution_id, step, ref))
        drafts.append(
            Draft(
                event_type="call.done",
                idempotency_key=f"result/{number}",
                aggregate_type="command",
                aggregate_id=f"c{number}",
                command_id=f"c{number}",
                node_name=step,
                result=result,
            )
        )
    await service.events.append(request(execution_id, note("start"), *drafts, scope=ACME, start=StreamStart()))
    return execution_id, references


async def fetched(client: Any, locator: str) -> bytes:
    payload = await client.payloads.fetch(None, locator)
    return b"".join([chunk async for chunk in payload.chunks])


async def test_a_payload_is_told_and_fetched_by_its_digest(api: Any, store: DirectoryPayloadStore) -> None:
    rita, ref = await api.as_("rita"), await stored(store)

    known = await rita.payloads.stat(None, ref.uri)
    told = (await rita.http.get("/api/payloads", params={"locator": ref.uri})).json()
    content = await rita.http.get("/api/payloads/content", params={"locator": ref.uri})

    assert (known.ref.sha256, known.ref.bytes, known.reference) == (ref.sha256, len(LARGE), None)
    assert known.stored_at is not None
    assert (told["uri"], told["bytes"], told["media_type"]) == (ref.uri, len(LARGE), "application/octet-stream")
    assert await fetched(rita, ref.uri) == LARGE
    assert content.content == LARGE
    assert content.headers["etag"] == f'"{ref.sha256}"'
    assert content.headers["content-length"] == str(len(LARGE))
    assert content.headers["x-content-type-options"] == "nosniff"


async def test_a_payload_is_found_by_the_result_that_refers_to_it(api: Any, store: DirectoryPayloadStore) -> None:
    rita = await api.as_("rita")
    _, (only,) = await executed(await api.as_("service"), store, "a step/of sorts")

    known = await rita.payloads.stat(None, str(only["ref_id"]))
    content = await rita.http.get("/api/payloads/content", params={"locator": only["ref_id"]})

    assert known.reference == only
    assert known.ref.media_type == "application/json"
    assert content.headers["content-type"] == "application/json"
    assert await fetched(rita, str(only["ref_id"])) == content.content == b'{"step":"a step/of sorts"}'


async def test_what_belongs_to_others_does_not_exist(api: Any, store: DirectoryPayloadStore) -> None:
    ref = await stored(store)
    execution_id, (only,) = await executed(await api.as_("service"), store, "a")

    for name in ("rival", "sam"):
        stranger = await api.as_(name)
        for locator in (ref.uri, str(only["ref_id"])):
            with pytest.raises(NotFound):
                await stranger.payloads.stat(None, locator)
            with pytest.raises(NotFound):
                await fetched(stranger, locator)
            for path in ("/api/payloads", "/api/payloads/content"):
                assert (await stranger.http.get(path, params={"locator": locator})).status_code == 404
        with pytest.raises(NotFound):
            await stranger.payloads.trace(None, execution_id, "a")
        assert (await stranger.http.get(f"/api/executions/{execution_id}/trace/a")).status_code == 404


async def test_what_is_not_there_or_no_address_is_told_apart(api: Any, store: DirectoryPayloadStore) -> None:
    rita, ref = await api.as_("rita"), await stored(store)
    await store.delete(ref)

    with pytest.raises(NotFound) as refusal:
        await rita.payloads.stat(None, ref.uri)
    assert refusal.value.code == "REFERENCE_NOT_AVAILABLE"
    for locator in ("", "file:///etc/passwd", "noetl://tenant/acme/org/ops", "noetl://execution/7"):
        with pytest.raises(InvalidInput):
            await rita.payloads.stat(None, locator)
        assert (await rita.http.get("/api/payloads", params={"locator": locator})).status_code in (400, 422)
    assert (await rita.http.get("/api/payloads")).status_code == 422


async def test_damaged_bytes_do_not_reach_the_end(api: Any, store: DirectoryPayloadStore) -> None:
    rita, ref = await api.as_("rita"), await stored(store)
    (store.root / payload_path(ref)).write_bytes(LARGE[:-1] + b"x")

    with pytest.raises(Corrupt):
        await fetched(rita, ref.uri)
    with pytest.raises(httpx.HTTPError):
        await rita.http.get("/api/payloads/content", params={"locator": ref.uri})


async def test_a_result_is_traced_to_where_it_came_from(api: Any, store: DirectoryPayloadStore) -> None:
    rita = await api.as_("rita")
    execution_id, references = await executed(await api.as_("service"), store, "load", "clean/up", "report")

    trace = await rita.payloads.trace(None, execution_id, "report")
    answer = await rita.http.get(f"/api/executions/{execution_id}/trace/clean/up")
    missing = await rita.http.get(f"/api/executions/{execution_id}/trace/nothing")

    assert [result.step for result in trace.results] == ["report", "clean/up", "load"]
    assert [result.reference for result in trace.results] == references[::-1]
    assert [(one["step"], one["parent_ref"]) for one in answer.json()["results"]] == [
        ("clean/up", {"ref_id": references[0]["ref_id"]}),
        ("load", None),
    ]
    assert missing.status_code == 404
    assert missing.json()["code"] == "execution.result_not_found"
