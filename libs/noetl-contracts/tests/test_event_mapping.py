"""Appends and their answers as messages."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta

from noetl.event.v1 import event_pb2 as pb
from noetl_contracts.mapping.events import append_response, appended, draft, draft_message
from noetl_core.append import Appended
from noetl_core.canonical import SpeltObject, encode
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.payloads import refer_to

NOON = datetime(2026, 5, 6, 12, 0, tzinfo=UTC)
STORED = StoredEvent(
    body=b"{}",
    stream_version=7,
    aggregate_version=2,
    ingest_time=NOON,
    prev_checksum="a" * 64,
    checksum="b" * 64,
)


def over_the_wire(response: pb.AppendResponse) -> pb.AppendResponse:
    return pb.AppendResponse.FromString(response.SerializeToString())


def test_an_answer_has_every_event_whole() -> None:
    outcomes = (Appended(event=STORED, duplicate=False), Appended(event=STORED, duplicate=True))

    response = over_the_wire(append_response(outcomes))

    assert tuple(appended(one) for one in response.events) == outcomes


def test_who_asks_for_places_gets_places_and_duplicates_whole() -> None:
    outcomes = (Appended(event=STORED, duplicate=False), Appended(event=STORED, duplicate=True))

    new, known = over_the_wire(append_response(outcomes, places_only=True)).events

    assert (new.event.stream_version, new.event.aggregate_version, new.duplicate) == (7, 2, False)
    assert (new.event.body, new.event.checksum, new.event.HasField("ingest_time")) == (b"", "", False)
    assert appended(known) == outcomes[1]


def test_every_field_of_a_draft_arrives_in_its_place() -> None:
    """Each has a value of its own, which is not its default."""
    sent = Draft(
        event_type="user.note",
        idempotency_key="key",
        schema_version=3,
        aggregate_type="frame",
        aggregate_id="aggregate",
        expected_aggregate_version=0,
        node_name="node",
        event_time=NOON,
        causation_id="causation",
        correlation_id="correlation",
        parent_event_id="parent",
        stage_id="stage",
        frame_id="frame",
        command_id="command",
        result={"status": "ok"},
        payload_ref=refer_to(b"{}", tenant_id="t", organization_id="o", media_type="application/json"),
        meta={"a": 1},
        not_before=NOON + timedelta(seconds=1),
        trace="trace",
    )
    defaults = Draft(event_type="", idempotency_key="")

    assert draft(draft_message(sent)) == sent
    assert not [one.name for one in fields(Draft) if getattr(sent, one.name) == getattr(defaults, one.name)]


def test_a_draft_keeps_the_bytes_that_were_canonical() -> None:
    sent = Draft(event_type="user.note", idempotency_key="k", meta={"b": 1, "a": [1.5, "ü"]}, result={"status": "ok"})

    received = draft(draft_message(sent))

    assert received == sent
    assert isinstance(received.meta, SpeltObject)
    assert received.meta.spelt == encode(sent.meta)
    assert received.content_sha256() == sent.content_sha256()


def test_a_draft_in_another_spelling_is_the_same_draft() -> None:
    sent = Draft(event_type="user.note", idempotency_key="k", meta={"a": 1, "b": 2})
    message = draft_message(sent)
    message.meta_json = b'{ "b": 2.0, "a": 1 }'

    received = draft(message)

    assert received == sent
    assert received.content_sha256() == sent.content_sha256()
