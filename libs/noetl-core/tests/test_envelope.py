from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.canonical import decode, encode, sha256_hex
from noetl_core.envelope import (
    Draft,
    StoredEvent,
    StreamSpelling,
    chain_checksum,
    check_result_shape,
    parse_body,
    trace_of,
    verify_link,
)
from noetl_core.errors import Corrupt, InvalidInput, NotCanonical
from noetl_core.payloads import refer_to
from noetl_core.timestamps import format_time

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REF = refer_to(b"{}", tenant_id="acme", organization_id="ops", media_type="application/json")
RESULT = {"status": "ok", "reference": None, "parent_ref": None, "context": {"n": 1}}

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)  # fmt: skip
drafts = st.builds(
    Draft,
    event_type=texts.filter(bool),
    idempotency_key=texts.filter(bool),
    schema_version=st.integers(1, 9),
    aggregate_type=st.sampled_from(["execution", "command", "frame"]),
    aggregate_id=texts,
    node_name=texts,
    causation_id=texts,
    correlation_id=texts,
    parent_event_id=texts,
    stage_id=texts,
    frame_id=texts,
    command_id=texts,
    result=st.none() | st.just(RESULT) | st.dictionaries(texts, values, min_size=1, max_size=3),
    payload_ref=st.none() | st.just(REF),
    meta=st.dictionaries(texts, values, max_size=4),
    trace=texts,
)


def body_of(draft: Draft, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "tenant_id": "acme",
        "organization_id": "ops",
        "execution_id": 4711,
        "producer": "urn:test",
        **changes,
    }
    return StreamSpelling(**fields).spell(draft, 17, NOON).body


def stored(body: bytes, version: int = 1, prev_checksum: str = "") -> StoredEvent:
    place: dict[str, Any] = {
        "prev_checksum": prev_checksum,
        "stream_version": version,
        "aggregate_version": version,
        "ingest_time": NOON,
        "body": body,
    }
    return StoredEvent(checksum=chain_checksum(**place), **place)


@given(draft=drafts, tenant=texts, parent=st.sampled_from([None, 99]), producer=texts)
def test_a_body_that_is_put_together_is_the_one_that_the_encoder_gives(
    draft: Draft, tenant: str, parent: int | None, producer: str
) -> None:
    body = body_of(draft, tenant_id=tenant, parent_execution_id=parent, producer=producer)

    assert body == encode(decode(body))
    present = {
        "producer": producer,
        "node_name": draft.node_name,
        "causation_id": draft.causation_id,
        "correlation_id": draft.correlation_id,
        "parent_event_id": draft.parent_event_id,
        "parent_execution_id": str(parent) if parent else "",
        "stage_id": draft.stage_id,
        "frame_id": draft.frame_id,
        "command_id": draft.command_id,
        "result": draft.result,
        "payload_ref": draft.payload_ref.to_json() if draft.payload_ref else None,
        "meta": dict(draft.meta),
        "trace": draft.trace,
    }
    assert body == encode(
        {
            "event_id": "17",
            "tenant_id": tenant,
            "organization_id": "ops",
            "execution_id": "4711",
            "stream_id": "4711",
            "aggregate_id": draft.aggregate_id or "4711",
            "aggregate_type": draft.aggregate_type,
            "event_type": draft.event_type,
            "schema_name": f"noetl.{draft.event_type}",
            "schema_version": draft.schema_version,
            "event_time": format_time(NOON),
            "idempotency_key": draft.idempotency_key,
            "content_sha256": draft.content_sha256(),
            **{key: value for key, value in present.items() if value},
        }
    )


@given(draft=drafts)
def test_the_digest_of_the_content_is_the_one_of_the_encoded_content(draft: Draft) -> None:
    content = {
        "event_type": draft.event_type,
        "schema_version": draft.schema_version,
        "aggregate_type": draft.aggregate_type,
        "aggregate_id": "" if draft.aggregate_type == "execution" else draft.aggregate_id,
        "node_name": draft.node_name,
        "result": draft.result,
        "payload_ref": draft.payload_ref.to_json() if draft.payload_ref else None,
        "meta": dict(draft.meta),
    }

    assert draft.content_sha256() == sha256_hex(encode(content))


@given(draft=drafts)
def test_what_is_written_into_a_body_is_read_from_it(draft: Draft) -> None:
    envelope = parse_body(body_of(draft))

    assert (envelope.event_id, envelope.execution_id, envelope.event_time) == (17, 4711, NOON)
    assert (envelope.event_type, envelope.idempotency_key) == (draft.event_type, draft.idempotency_key)
    assert (envelope.node_name, envelope.trace) == (draft.node_name, draft.trace)
    assert encode(envelope.meta) == encode(dict(draft.meta))
    assert envelope.payload_ref == draft.payload_ref
    assert envelope.content_sha256 == draft.content_sha256()


DRAFT = Draft(event_type="user.note", idempotency_key="k", meta={"n": 1}, result=RESULT)


@pytest.mark.parametrize(
    "other",
    [
        replace(DRAFT, idempotency_key="other"),
        replace(DRAFT, event_time=NOON),
        replace(DRAFT, trace="other"),
        replace(DRAFT, causation_id="other", correlation_id="other", parent_event_id="other"),
        replace(DRAFT, meta={"n": 1, "worker_locator": "there", "placement": {"distance": "zone"}}),
        replace(DRAFT, expected_aggregate_version=7, not_before=NOON),
    ],
)
def test_time_trace_ids_and_places_are_not_content(other: Draft) -> None:
    assert other.content_sha256() == DRAFT.content_sha256()


@pytest.mark.parametrize(
    "other",
    [
        replace(DRAFT, event_type="user.other"),
        replace(DRAFT, schema_version=2),
        replace(DRAFT, node_name="step"),
        replace(DRAFT, meta={"n": 2}),
        replace(DRAFT, result=None),
        replace(DRAFT, payload_ref=REF),
        replace(DRAFT, aggregate_type="command", aggregate_id="c"),
    ],
)
def test_type_node_result_reference_and_meta_are_content(other: Draft) -> None:
    assert other.content_sha256() != DRAFT.content_sha256()


def test_a_lone_surrogate_is_refused_wherever_it_stands() -> None:
    for draft in (
        replace(DRAFT, node_name="\ud800"),
        replace(DRAFT, meta={"x": "\ud800"}),
        replace(DRAFT, trace="\ud800"),
    ):
        with pytest.raises(NotCanonical):
            body_of(draft)


@pytest.mark.parametrize("scope", [{"tenant_id": "\ud800"}, {"organization_id": "\ud800"}, {"producer": "\udfff"}])
def test_a_lone_surrogate_is_refused_in_the_scope_as_well(scope: dict[str, str]) -> None:
    with pytest.raises(NotCanonical):
        body_of(DRAFT, **scope)


def test_names_that_are_too_long_to_be_kept_are_spelt_all_the_same() -> None:
    draft = replace(DRAFT, node_name="n" * 4_000)

    assert parse_body(body_of(draft)).node_name == draft.node_name
    assert draft.content_sha256() != DRAFT.content_sha256()


def test_a_chain_holds_until_something_in_it_changes() -> None:
    first = stored(body_of(DRAFT))
    second = stored(body_of(DRAFT), 2, first.checksum)
    verify_link(first)
    verify_link(second)

    for forged in (
        second._replace(body=body_of(replace(DRAFT, node_name="x"))),
        second._replace(stream_version=3),
        second._replace(aggregate_version=3),
        second._replace(ingest_time=NOON + timedelta(microseconds=1)),
        second._replace(prev_checksum="0" * 64),
    ):
        with pytest.raises(Corrupt):
            verify_link(forged)


def test_a_chain_does_not_depend_on_the_zone_in_which_a_time_is_told() -> None:
    first = stored(body_of(DRAFT))

    verify_link(first._replace(ingest_time=NOON.astimezone(timezone(timedelta(hours=2)))))


@pytest.mark.parametrize(
    "result",
    [
        {"status": "ok"},
        {"status": "error", "reference": None, "parent_ref": None, "context": None},
        {"status": "skipped", "reference": {"uri": "x"}, "context": {"rows_read": 7}},
        RESULT,
    ],
)
def test_results_of_the_right_shape_pass(result: dict[str, Any]) -> None:
    check_result_shape(result)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"status": "fine"},
        {"status": None},
        {"status": "ok", "rows": []},
        {"status": "ok", "reference": "text"},
        {"status": "ok", "context": []},
        {"status": "ok", "context": {"data": 1}},
        {"status": "ok", "context": {"payload": 1}},
    ],
)
def test_results_that_carry_data_are_refused(result: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        check_result_shape(result)


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"event_id":"x"}', body_of(DRAFT).replace(b'"tenant_id":"acme"', b'"tenant_id":7')]
)
def test_a_body_that_is_not_an_event_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_body(body)


TRICKY = st.sampled_from(["", "00-a-b-01", 'with " and \\ in it', ',"trace":"x', "ends with \\", '"}', "\x00ü𝄞"])


@given(trace=TRICKY | texts, tenant=TRICKY.filter(bool), inner=TRICKY)
def test_the_trace_is_found_without_reading_the_body(trace: str, tenant: str, inner: str) -> None:
    meta = {"a": 1, "trace": inner, "z": {"a": [], "trace": inner}}
    body = body_of(Draft(event_type="a", idempotency_key="k", meta=meta, trace=trace), tenant_id=tenant)

    assert trace_of(body) == trace
