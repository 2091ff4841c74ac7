"""A collection as its events tell it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from noetl_core import catalog
from noetl_core.canonical import sha256_hex
from noetl_core.catalog import known_types
from noetl_core.collection.cycles import Cycle, Stage, decode_list, encode_list, evolve, may_be_marked
from noetl_core.collection.events import COLLECTION_PATH, PayloadsMarked, PayloadsSwept, PayloadsWithdrawn
from noetl_core.collection.reach import Reached
from noetl_core.envelope import Envelope
from noetl_core.errors import Corrupt
from noetl_core.events import to_draft
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import empty, fold
from noetl_core.payloads import StoredPayload
from noetl_core.recorded import Recorded
from noetl_core.upcasting.registry import Upcaster, Upcasters
from noetl_core.why import ReasonKind, explain

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MARKED = PayloadsMarked(payload_ref=None, count=3, total_bytes=30, grace_seconds=DAY.total_seconds())


def envelope(content: object) -> Envelope:
    draft = to_draft(content, idempotency_key="k")
    return Envelope(
        event_id=1,
        tenant_id="t",
        organization_id="o",
        execution_id=7,
        event_type=draft.event_type,
        schema_version=1,
        aggregate_type=draft.aggregate_type,
        aggregate_id="7",
        event_time=NOON,
        idempotency_key="k",
        content_sha256="",
        meta=dict(draft.meta),
    )


def after(cycle: Cycle | None, content: object, at: datetime) -> Cycle:
    evolved = evolve(cycle, envelope(content), ingest_time=at)
    assert evolved is not None
    return evolved


def test_each_stage_waits_for_the_grace_period_that_was_marked() -> None:
    marked = after(None, MARKED, NOON)
    withdrawn = after(marked, PayloadsWithdrawn(payload_ref=None, count=2, total_bytes=20, spared=1), NOON + 3 * DAY)
    swept = after(withdrawn, PayloadsSwept(payload_ref=None, count=1, total_bytes=10, restored=1), NOON + 5 * DAY)

    assert [marked.stage, withdrawn.stage, swept.stage] == [Stage.MARKED, Stage.WITHDRAWN, Stage.SWEPT]
    assert not marked.is_due(NOON + DAY - timedelta(seconds=1))
    assert marked.is_due(NOON + DAY)
    assert not withdrawn.is_due(NOON + 3 * DAY)
    assert withdrawn.is_due(NOON + 4 * DAY)
    assert not swept.is_due(NOON + 100 * DAY)


def test_a_step_that_an_earlier_release_has_told_is_taken_as_today_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it has marked would never be swept."""
    of_today = envelope(MARKED)
    monkeypatch.setitem(
        catalog._BY_NAME, of_today.event_type, replace(known_types()[of_today.event_type], schema_version=2)
    )
    meta = {name: value for name, value in of_today.meta.items() if name != "grace_seconds"}
    old = replace(of_today, meta={**meta, "grace_days": 1})

    def in_seconds(envelope: Envelope) -> Envelope:
        return replace(envelope, meta={**meta, "grace_seconds": 86_400})

    upcaster = Upcaster(event_type=of_today.event_type, from_version=1, to_version=2, change=in_seconds)

    marked = evolve(None, old, ingest_time=NOON, upcasters=Upcasters([upcaster]))

    assert marked is not None
    assert (marked.stage, marked.grace, marked.count) == (Stage.MARKED, DAY, MARKED.count)


def test_young_payloads_and_files_of_other_names_are_not_marked() -> None:
    reached = Reached(field_bits=12)
    digest = sha256_hex(b"x")

    def may(sha256: str, stored_at: datetime | None) -> bool:
        stored = StoredPayload(sha256=sha256, bytes=1, stored_at=stored_at)
        return may_be_marked(stored, reached, now=NOON, grace=DAY)

    assert may(digest, NOON - DAY)
    assert may(digest, None)
    assert not may(digest, NOON - DAY + timedelta(seconds=1))
    assert not may("README", NOON - DAY)
    assert not may("z" * 64, NOON - DAY)
    reached.add(digest)
    assert not may(digest, NOON - DAY)


def test_a_list_is_read_as_it_was_written() -> None:
    payloads = tuple(StoredPayload(sha256=sha256_hex(bytes([n])), bytes=n) for n in range(5))

    assert decode_list(encode_list(payloads)) == payloads


@pytest.mark.parametrize("text", [b"{}", b'[["x"]]', b'[["../../etc",1]]', b'[[1,"a"]]', b"[null]"])
def test_what_is_no_list_is_refused(text: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_list(text)


def test_a_collection_is_listed_as_an_execution_without_a_playbook() -> None:
    recorded = Recorded(
        envelope=envelope(MARKED), content=MARKED, stream_version=1, aggregate_version=1, ingest_time=NOON
    )

    state = fold(empty(7), recorded)

    assert state.execution.path == COLLECTION_PATH
    assert state.execution.started_at == NOON
    assert state.execution.status is ExecutionStatus.RUNNING
    assert state.unknown_events == 0
    assert [reason.kind for reason in explain(state, now=NOON + DAY)] == [ReasonKind.GRACE]
