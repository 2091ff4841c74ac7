"""artifact steps: from a reference to the value it stands for."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue, encode
from noetl_core.payloads import PayloadRef
from noetl_servicekit.stored_values import StoredValues
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.artifact import ArtifactTool, EarlierResults, ResultReferences

VALUE: dict[str, JsonValue] = {"rows": [{"id": 1}], "row_count": 1}


@pytest.fixture
def store() -> InMemoryPayloadStore:
    return InMemoryPayloadStore()


async def put(store: InMemoryPayloadStore, value: JsonValue, *, tenant_id: str = "default") -> PayloadRef:
    return await store.put(
        tenant_id=tenant_id, organization_id="default", data=encode(value), media_type="application/json"
    )


def artifact(store: InMemoryPayloadStore, *, references: ResultReferences | None = None) -> ArtifactTool:
    return ArtifactTool(StoredValues(store, ArrowTables()), references=references)


def call(reference: JsonValue, *, action: JsonValue = "get", **names: object) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind="artifact",
        config={"action": action},
        input={"result_ref": reference},
        names=names,
    )


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


def ref_view(ref: PayloadRef) -> dict[str, Any]:
    """`_ref` of a large result, as templates see it."""
    locator = f"noetl://execution/1/result/fetch/{ref.sha256[:16]}"
    return {"kind": "result_ref", "ref": locator, "store": "disk", "sha256": ref.sha256}


async def test_the_value_is_on_top_and_as_data(store: InMemoryPayloadStore) -> None:
    ref = await put(store, VALUE)
    tool = artifact(store)

    expected = {**VALUE, "data": VALUE}
    assert (await tool.run(call(ref.uri))).data == expected
    assert (await tool.run(call(ref_view(ref)))).data == expected
    assert (await tool.run(call(ref.to_json()))).data == expected
    assert (await tool.run(call("{{ fetch._ref }}", fetch={"_ref": ref_view(ref)}))).data == expected
    assert (await tool.run(call("{{ fetch }}", fetch={"_ref": ref_view(ref), "row_count": 1}))).data == expected


async def test_a_value_that_is_no_map_is_data(store: InMemoryPayloadStore) -> None:
    ref = await put(store, [1, 2])

    assert (await artifact(store).run(call(ref.uri))).data == {"data": [1, 2]}


async def test_a_large_value_is_loaded_too(store: InMemoryPayloadStore) -> None:
    ref = await put(store, ["x" * 100] * 10_000)

    outcome = await artifact(store).run(call(ref.uri))

    assert isinstance(outcome.data, dict)
    assert outcome.data["data"] == ["x" * 100] * 10_000


async def test_a_reference_that_leads_nowhere_may_do_so_later(store: InMemoryPayloadStore) -> None:
    ref = await put(store, VALUE)
    store.objects.clear()

    outcome = await artifact(store).run(call(ref.uri))

    assert failure(outcome) == (ErrorKind.STORAGE_ACCESS, "REFERENCE_NOT_AVAILABLE", True)


async def test_the_short_address_of_a_result_needs_somebody_who_knows_it(store: InMemoryPayloadStore) -> None:
    ref = await put(store, VALUE)

    class Known:
        async def find(self, call: ToolCall, locator: str) -> PayloadRef | None:
            return ref if locator == ref_view(ref)["ref"] else None

    address = ref_view(ref)["ref"]

    assert failure(await artifact(store).run(call(address)))[1] == "REFERENCE_NOT_AVAILABLE"
    known = await artifact(store, references=Known()).run(call(address))
    assert known.data == {**VALUE, "data": VALUE}
    other = await artifact(store, references=Known()).run(call(address[:-1]))
    assert failure(other)[1] == "REFERENCE_NOT_AVAILABLE"


async def test_another_tenants_value_cannot_be_loaded(store: InMemoryPayloadStore) -> None:
    ref = await put(store, VALUE, tenant_id="else")

    by_address = await artifact(store).run(call(ref.uri))
    by_digest = await artifact(store).run(call(ref_view(ref)))

    assert failure(by_address)[1] == failure(by_digest)[1] == "REFERENCE_NOT_AVAILABLE"


@pytest.mark.parametrize("reference", [None, "", 3, {}, "http://x/", "noetl://nothing", {"sha256": "short"}])
async def test_other_things_are_no_reference(store: InMemoryPayloadStore, reference: JsonValue) -> None:
    assert failure(await artifact(store).run(call(reference))) == (
        ErrorKind.SCHEMA,
        "TOOL_CONFIG",
        False,
    )


async def test_only_getting_is_possible(store: InMemoryPayloadStore) -> None:
    assert failure(await artifact(store).run(call("x", action="put")))[1] == "TOOL_CONFIG"


async def test_bytes_that_are_no_json_are_no_value(store: InMemoryPayloadStore) -> None:
    data = b"not json"
    ref = await store.put(
        tenant_id="default", organization_id="default", data=data, media_type="application/octet-stream"
    )
    assert ref.sha256 == hashlib.sha256(data).hexdigest()

    assert failure(await artifact(store).run(call(ref.uri))) == (
        ErrorKind.PARSE,
        "ARTIFACT_NOT_JSON",
        False,
    )


async def test_the_short_address_of_an_earlier_step_of_the_same_execution_is_known(store: InMemoryPayloadStore) -> None:
    ref = await put(store, VALUE)
    address = ref_view(ref)["ref"]
    told: dict[str, dict[str, Any]] = {
        "other": {"reference": None},
        "big": {"reference": {"ref_id": address, **ref.to_json()}},
    }

    found = await artifact(store, references=EarlierResults()).run(replace(call(address), results=told))
    other = await artifact(store, references=EarlierResults()).run(call(address))

    assert found.data == {**VALUE, "data": VALUE}
    assert failure(other)[1] == "REFERENCE_NOT_AVAILABLE"
