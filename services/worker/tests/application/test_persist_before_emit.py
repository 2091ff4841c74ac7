"""Bytes first, event second: what events say about results, and what they never say."""

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.collection.documents import HOLDING_JSON, documents_in
from noetl_core.errors import InvalidInput, Unavailable
from noetl_core.locator import parse
from noetl_core.payload_hints import IpcHint
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.playbook.selection import ResultPath
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.event_result import MAX_CONTEXT_BYTES, EventResult
from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.patience import PATIENCE_SECONDS
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.prepared_result import MAX_SOON_SPELT, is_soon_spelt
from noetl_worker.application.recently_stored import MOST_BYTES, SECONDS, RecentlyStored, SmallPayload
from noetl_worker.application.result_refs import result_ref

TABLES = ArrowTables()
PLACE = ResultPlace(tenant_id="acme", organization_id="ops", execution_id=42, step="load it")
FORBIDDEN = {"rows", "columns", "data", "response", "result", "payload"}


class UnreliableStore(InMemoryPayloadStore):
    """Refuses so many puts before it works."""

    def __init__(self, *, refusals: int, error: type[Unavailable] | type[InvalidInput] = Unavailable) -> None:
        super().__init__()
        self.puts = 0
        self.slept: list[float] = []
        self._refusals = refusals
        self._error = error

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        self.puts += 1
        if self.puts <= self._refusals:
            raise self._error("the disk is away")
        return await super().put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def persist(
    data: JsonValue, *, paths: Collection[ResultPath] = (), parent_ref_id: str | None = None
) -> EventResult:
    persist = PersistBeforeEmit(InMemoryPayloadStore(), TABLES)
    return await persist(PLACE, Outcome(data=data), control_paths=paths, parent_ref_id=parent_ref_id)


@pytest.mark.parametrize(
    ("outcome", "soon"),
    [
        (Outcome(data={"n": 1, "list": [1.5, None, True, "text"]}), True),
        (Outcome(data=None, py={"stdout": "x" * 1_000}), True),
        (Outcome(data="x" * 16 * MAX_SOON_SPELT), False),
        (Outcome(data={"deep": [[0] * MAX_SOON_SPELT]}), False),
        (Outcome(data={str(n): n for n in range(MAX_SOON_SPELT)}), False),
        (Outcome(data=None, py={"stdout": "x" * 16 * MAX_SOON_SPELT}), False),
        (Outcome(data=cast("JsonValue", {"view": object()})), False),
    ],
)
def test_only_what_is_short_is_spelt_at_once(outcome: Outcome, soon: bool) -> None:
    assert is_soon_spelt(outcome) is soon


def error_of(result: EventResult) -> JsonObject:
    error = result.context["error"]
    assert isinstance(error, dict)
    return error


async def test_a_result_has_exactly_four_fields_and_points_at_its_canonical_bytes() -> None:
    store = InMemoryPayloadStore()
    outcome = Outcome(data={"b": 1, "a": [2]}, meta=OutcomeMeta(attempt=3, duration_ms=1.5))

    result = await PersistBeforeEmit(store, TABLES)(PLACE, outcome)

    body = b'{"a":[2],"b":1}'
    ref = refer_to(body, tenant_id="acme", organization_id="ops", media_type="application/json")
    assert store.objects == {ref.uri: body}
    assert result.to_json() == {
        "status": "ok",
        "reference": {
            "ref_id": f"noetl://execution/42/result/load%20it/{ref.sha256[:16]}",
            "type": "object_store",
            "uri": ref.uri,
            "sha256": ref.sha256,
            "media_type": "application/json",
            "bytes": len(body),
        },
        "parent_ref": None,
        "context": {"size_bytes": len(body), "attempts": 3, "duration_ms": 1.5},
    }


async def test_the_parent_is_the_result_of_the_task_before() -> None:
    first = await persist(1)
    second = await persist(2, parent_ref_id=first.ref_id)

    assert second.parent_ref == {"ref_id": first.ref_id}
    assert parse(str(second.ref_id)).kind == "result"


@pytest.mark.parametrize("data", [None, 0, "text", [], {}, {"data": {"rows": [1]}}])
async def test_every_result_is_stored_even_null(data: JsonValue) -> None:
    result = await persist(data)

    assert result.reference is not None
    assert result.context["size_bytes"] == len(encode(data))


async def test_the_scalars_that_conditions_read_are_selected_by_pointer() -> None:
    data: JsonValue = {"risk": 1.2, "data": {"score": 7}, "rows": [{"x": 1}], "name": "n"}

    result = await persist(data, paths=[("risk",), ("score",), ("rows",), ("missing",)])

    assert result.context["select"] == {"/risk": 1.2, "/data/score": 7}
    assert result.context["unselected"] == ["/data", "/rows"]


async def test_no_row_or_other_data_ever_stands_in_the_context() -> None:
    data: JsonValue = {key: [{"x": "SENSITIVE"}] for key in FORBIDDEN}

    result = await persist(data, paths=[(key,) for key in FORBIDDEN] + [()])

    assert "SENSITIVE" not in json.dumps(result.to_json())
    assert FORBIDDEN.isdisjoint(result.context)


@pytest.mark.parametrize(
    "name", ["password", "db_password", "apiKey", "api_key", "X-Auth-Token", "client_secret", "Authorization"]
)
async def test_a_credential_is_withheld_even_if_a_condition_reads_it(name: str) -> None:
    result = await persist({"auth": {name: "hunter2"}, "ok": True}, paths=[("auth", name), ("ok",)])

    assert "hunter2" not in json.dumps(result.to_json())
    assert result.context["select"] == {"/ok": True}
    assert result.context["unselected"] == [f"/auth/{name}"]


@pytest.mark.parametrize("name", ["next_page_token", "pageToken", "monkey", "sort_key", "tokenizer", "secretary"])
async def test_a_name_that_only_resembles_a_credential_is_selected(name: str) -> None:
    result = await persist({name: "abc"}, paths=[(name,)])

    assert result.context["select"] == {f"/{name}": "abc"}


async def test_that_there_is_a_credential_may_be_known() -> None:
    result = await persist({"token": None, "password": False}, paths=[("token",), ("password",)])

    assert result.context["select"] == {"/token": None, "/password": False}


async def test_a_context_stays_small_by_withholding_the_largest_scalars() -> None:
    data: JsonObject = {"flag": True, **{f"k{n}": "x" * 1000 for n in range(20)}}

    result = await persist(data, paths=[(key,) for key in data])

    assert len(encode(result.context)) <= MAX_CONTEXT_BYTES
    selected, unselected = result.context["select"], result.context["unselected"]
    assert isinstance(selected, dict) and isinstance(unselected, list)
    assert selected["/flag"] is True
    assert len(selected) + len(unselected) == 21
    assert len(selected) > 5


async def test_more_places_than_an_event_can_list_is_an_error_and_not_a_wrong_answer() -> None:
    data: JsonObject = {f"key-number-{n}": [n] for n in range(1000)}

    result = await persist(data, paths=[(key,) for key in data])

    assert result.status == "error"
    assert error_of(result)["code"] == "CONTROL_CONTEXT_TOO_LARGE"
    assert "select" not in result.context


# --- errors -----------------------------------------------------------------------------------------------


async def test_an_error_is_stored_as_it_reads_after_continue() -> None:
    store = InMemoryPayloadStore()
    outcome = Outcome.failed(
        kind=ErrorKind.TRANSFORM, code="PY_ValueError", message="bad", py={"traceback": "line 1: raise"}
    )

    result = await PersistBeforeEmit(store, TABLES)(PLACE, outcome, control_paths=[("status",), ("error", "code")])

    (body,) = store.objects.values()
    assert json.loads(body) == {
        "status": "error",
        "error": {"kind": "transform", "code": "PY_ValueError", "message": "bad", "retryable": False},
        "py": {"traceback": "line 1: raise"},
    }
    assert result.status == "error"
    assert result.reference is not None
    assert error_of(result) == {
        "kind": "transform",
        "code": "PY_ValueError",
        "message": "bad",
        "retryable": False,
    }
    assert result.context["select"] == {"/status": "error", "/error/code": "PY_ValueError"}


async def test_a_long_message_is_cut_to_a_kilobyte_of_whole_characters() -> None:
    outcome = Outcome.failed(kind=ErrorKind.UNKNOWN, code="X" * 1000, message="x" + "ä" * 5000)

    result = await PersistBeforeEmit(InMemoryPayloadStore(), TABLES)(PLACE, outcome)

    message = str(error_of(result)["message"])
    assert 1020 < len(message.encode()) <= 1024
    assert set(message) == {"x", "ä"}
    assert len(encode(result.context)) < 2048


@pytest.mark.parametrize(
    "message",
    [
        "cannot log in with password=hunter2",
        'refused: {"api_key": "hunter2"}',
        "Authorization: Bearer hunter2",
        "postgres://ada:hunter2@db/shop is down",
    ],
)
async def test_credentials_in_messages_are_blotted_out(message: str) -> None:
    store = InMemoryPayloadStore()
    outcome = Outcome.failed(kind=ErrorKind.UNKNOWN, code="X", message=message)

    result = await PersistBeforeEmit(store, TABLES)(PLACE, outcome)

    assert "hunter2" not in json.dumps(result.to_json())
    assert b"hunter2" not in b"".join(store.objects.values())


async def test_a_result_that_json_cannot_carry_becomes_an_error_that_is_stored() -> None:
    result = await persist({"rows": [{"x": float("nan")}]})

    assert result.status == "error"
    assert result.reference is not None
    assert error_of(result)["kind"] == "schema"
    assert error_of(result)["code"] == "RESULT_NOT_JSON"
    assert "/rows/0/x" in str(error_of(result)["message"])


# --- the store --------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_for_a_moment_is_asked_again() -> None:
    store = UnreliableStore(refusals=3)

    result = await PersistBeforeEmit(store, TABLES, sleep=store.sleep)(PLACE, Outcome(data=1))

    assert result.status == "ok"
    assert store.slept == [0.05, 0.2, 0.8]


async def test_without_a_store_there_is_no_reference_but_a_retryable_error() -> None:
    store = UnreliableStore(refusals=100)

    result = await PersistBeforeEmit(store, TABLES, sleep=store.sleep)(
        PLACE, Outcome(data={"a": 1}), control_paths=[("a",)], parent_ref_id="parent"
    )

    assert sum(store.slept) == PATIENCE_SECONDS, "it is away for longer than any restart takes"
    assert result.status == "error"
    assert result.reference is None
    assert result.parent_ref == {"ref_id": "parent"}
    assert error_of(result) == {
        "kind": "storage_access",
        "code": "REFERENCE_NOT_AVAILABLE",
        "retryable": True,
        "message": "the result could not be stored: the disk is away",
    }
    assert "select" not in result.context


async def test_a_store_that_refuses_for_good_is_not_asked_again() -> None:
    store = UnreliableStore(refusals=100, error=InvalidInput)

    result = await PersistBeforeEmit(store, TABLES, sleep=store.sleep)(PLACE, Outcome(data=1))

    assert store.puts == 1
    assert result.status == "error"


async def test_a_step_that_no_locator_can_name_is_named_by_its_payload() -> None:
    place = ResultPlace(tenant_id="acme", organization_id="ops", execution_id=42, step="..")

    result = await PersistBeforeEmit(InMemoryPayloadStore(), TABLES)(place, Outcome(data=1))

    assert result.reference is not None
    assert result.ref_id == result.reference["uri"]


class StoreWithCopies(InMemoryPayloadStore):
    """Says where a copy is, as one behind shared memory does."""

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        ref = await super().put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)
        hint = IpcHint(node_id="node", shm_name="noetl/x", schema_digest="0" * 64, valid_until=datetime.now(UTC))
        return replace(ref, hint=hint)


async def test_where_a_copy_is_travels_beside_where_the_result_is() -> None:
    result = await PersistBeforeEmit(StoreWithCopies(), ArrowTables())(PLACE, Outcome(data={"a": 1}))

    assert result.reference is not None
    read = result_ref(result.reference)
    assert read.hint is not None
    assert (read.hint.node_id, read.hint.shm_name) == ("node", "noetl/x")
    assert read == refer_to(b'{"a":1}', tenant_id="acme", organization_id="ops", media_type="application/json")


DIGEST = "0123456789abcdef" * 4


async def test_a_result_that_names_payloads_says_so_for_those_who_collect_garbage() -> None:
    plain = await persist({"rows": {"_chunks": []}})
    holding = await persist({"rows": {"_chunks": [[DIGEST, 9, 1, "text/plain"]]}})
    table = await persist({"rows": [{"n": 1}], "more": {"_chunks": [[DIGEST, 9, 1, "text/plain"]]}})
    other_table = await persist({"rows": [{"n": 1}]})

    assert [(one.reference or {})["media_type"] for one in (plain, holding)] == ["application/json", HOLDING_JSON]
    assert (table.reference or {})["media_type"] == (other_table.reference or {})["media_type"]
    assert [(one.reference or {}).get("holds") for one in (holding, table, other_table)] == [None, True, None]
    for told in (holding, table):
        body = encode({"result": told.to_json()})
        assert list(documents_in(body)) == [(told.reference or {})["sha256"]]
    assert list(documents_in(encode({"result": plain.to_json()}))) == []
    assert result_ref(holding.reference or {}).sha256 == (holding.reference or {})["sha256"]


# --- what was stored a moment ago ---------------------------------------------------------------------------


class Twice:
    """Stores things by a clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = UnreliableStore(refusals=0)
        self.persist = PersistBeforeEmit(self.store, TABLES, sleep=self.store.sleep, clock=lambda: self.now)

    async def put(self, body: bytes = b'{"n":1}', *, place: ResultPlace = PLACE, media_type: str = "") -> PayloadRef:
        return await self.persist.put(place, body, media_type=media_type)


async def test_the_same_few_bytes_are_not_stored_again_at_once() -> None:
    twice = Twice()
    first = await twice.put()
    twice.now += SECONDS - 1

    assert await twice.put() == first
    assert twice.store.puts == 1


async def test_after_a_while_they_are_stored_again_which_mends_them() -> None:
    twice = Twice()
    ref = await twice.put()
    twice.store.objects[ref.uri] = b"damaged"
    twice.now += SECONDS

    assert await twice.put() == ref
    assert twice.store.objects[ref.uri] == b'{"n":1}'


async def test_everybody_has_bytes_of_their_own() -> None:
    twice = Twice()
    places = [PLACE, replace(PLACE, tenant_id="rival"), replace(PLACE, organization_id="sales")]

    refs = [await twice.put(place=place) for place in places]

    assert twice.store.objects.keys() == {ref.uri for ref in refs}
    assert len(twice.store.objects) == 3


async def test_the_same_bytes_under_another_media_type_say_so() -> None:
    twice = Twice()
    await twice.put(media_type="application/json")

    assert (await twice.put(media_type="text/plain")).media_type == "text/plain"


async def test_bytes_that_could_not_be_stored_are_not_known() -> None:
    store = UnreliableStore(refusals=1)
    persist = PersistBeforeEmit(store, TABLES, retry_delays_seconds=())
    with pytest.raises(Unavailable):
        await persist.put(PLACE, b"1")

    ref = await persist.put(PLACE, b"1")

    assert store.objects[ref.uri] == b"1"


async def test_the_time_that_a_slow_store_takes_counts() -> None:
    class SlowStore(UnreliableStore):
        async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
            twice.now += SECONDS
            return await super().put(
                tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type
            )

    twice = Twice()
    store = SlowStore(refusals=0)
    twice.persist = PersistBeforeEmit(store, TABLES, clock=lambda: twice.now)
    await twice.put()
    await twice.put()

    assert store.puts == 2


async def test_large_bytes_and_those_of_which_there_are_copies_are_stored_each_time() -> None:
    twice = Twice()
    for _ in range(2):
        await twice.put(b"x" * (MOST_BYTES + 1))
    with_copies = PersistBeforeEmit(StoreWithCopies(), TABLES)
    refs = [await with_copies.put(PLACE, b"1") for _ in range(2)]

    assert twice.store.puts == 2
    assert all(ref.hint is not None for ref in refs)


def test_what_was_stored_longest_ago_is_forgotten_first() -> None:
    kept = RecentlyStored(clock=lambda: 0.0, most=2)
    payloads = [SmallPayload("acme", "ops", "text/plain", bytes([n])) for n in range(3)]
    for payload in (payloads[0], payloads[1], payloads[0], payloads[2]):
        ref = refer_to(payload.body, tenant_id="acme", organization_id="ops", media_type="text/plain")
        kept.add(payload, ref, asked_at=0.0)

    assert [kept.find(payload) is not None for payload in payloads] == [True, False, True]
