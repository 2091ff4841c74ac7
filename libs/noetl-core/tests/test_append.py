from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from noetl_core.append import (
    END_KEY,
    MAX_DRAFTS,
    AppendRequest,
    Hint,
    PreparedRequest,
    StreamAppend,
    StreamStart,
    prepare,
)
from noetl_core.envelope import Draft
from noetl_core.errors import InvalidInput
from noetl_core.sharding import shard_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTE = Draft(event_type="user.note", idempotency_key="k")


def request(*streams: StreamAppend, **fields: Any) -> AppendRequest:
    return AppendRequest(tenant_id="acme", organization_id="ops", streams=streams, **fields)


def stream(*drafts: Draft, execution_id: int = 7, **fields: Any) -> StreamAppend:
    return StreamAppend(execution_id=execution_id, drafts=drafts, **fields)


def prepared(append: AppendRequest) -> PreparedRequest:
    ids = count(100)
    return prepare(append, next_event_id=lambda: next(ids), now=NOON, shard_count=64)


def test_everything_that_needs_no_lock_is_computed_before_it() -> None:
    late = replace(NOTE, idempotency_key="l", event_time=datetime(2026, 1, 2, tzinfo=UTC))

    done = prepared(request(stream(NOTE, late), stream(NOTE, execution_id=8), producer="urn:test"))

    first, second = done.streams
    assert (first.shard, second.shard) == (shard_of(7, 64), shard_of(8, 64))
    assert [draft.event_id for draft in (*first.drafts, *second.drafts)] == [100, 101, 102]
    assert [draft.event_time for draft in first.drafts] == [NOON, late.event_time]
    assert first.drafts[0].content_sha256 == NOTE.content_sha256()
    assert b'"producer":"urn:test"' in first.drafts[0].body


@pytest.mark.parametrize(
    "append",
    [
        request(),
        request(stream()),
        request(stream(NOTE), stream(NOTE)),
        request(stream(*(NOTE for _ in range(MAX_DRAFTS + 1)))),
        request(stream(NOTE, NOTE, start=StreamStart(start_key="k"))),
        request(stream(NOTE), hints=(Hint(subject="noetl.work.a.b", body=b"", execution_id=8),)),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(append: AppendRequest) -> None:
    with pytest.raises(InvalidInput):
        prepared(append)


@pytest.mark.parametrize(
    "fields",
    [
        {"event_type": ""},
        {"event_type": "with space"},
        {"event_type": "x" * 129},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 513},
        {"idempotency_key": END_KEY},
        {"event_type": "playbook.completed"},
        {"aggregate_type": "command"},
        {"aggregate_type": "command", "aggregate_id": "c" * 513},
        {"meta": {"loop_id": "l" * 513}},
        {"meta": {"x": "x" * 65_536}},
        {"meta": {"x": float("inf")}},
        {"meta": {"x": 2**60}},
        {"idempotency_key": "a\0b"},
        {"node_name": "a\0b"},
        {"meta": {"epoch_id": "a\0b"}},
        {"result": {"status": "ok", "rows": []}},
    ],
)
def test_a_draft_that_the_log_could_not_hold_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        prepared(request(stream(replace(NOTE, **fields))))


def test_a_draft_may_name_the_event_of_one_before_it() -> None:
    drafts = [replace(NOTE, idempotency_key=f"k{place}", parent_event_id=f"@{place - 1}") for place in (1, 2)]

    (done,) = prepared(request(stream(NOTE, *drafts, expected_stream_version=4))).streams

    first, second, third = [one.body for one in done.drafts]
    assert b"parent_event_id" not in first
    assert b'"parent_event_id":"100"' in second
    assert b'"parent_event_id":"101"' in third


@pytest.mark.parametrize("parent", ["@", "@1", "@2", "@-1", "@0x0", "@\u0660", "@" + "0" * 6])
def test_a_draft_that_does_not_stand_before_it_has_no_event_yet(parent: str) -> None:
    with pytest.raises(InvalidInput, match="no draft that stands before it"):
        prepared(request(stream(NOTE, replace(NOTE, parent_event_id=parent), expected_stream_version=4)))


def test_a_draft_that_may_be_a_repetition_cannot_be_named() -> None:
    with pytest.raises(InvalidInput, match="expected version"):
        prepared(request(stream(NOTE, replace(NOTE, idempotency_key="l", parent_event_id="@0"))))


def test_what_only_looks_like_a_zero_character_is_accepted() -> None:
    prepared(request(stream(replace(NOTE, node_name="\\u0000", idempotency_key="\\u0000"))))


def test_facts_and_results_may_hold_a_zero_character() -> None:
    result = {"status": "error", "context": {"message": "a\0b"}}

    (only,) = prepared(request(stream(replace(NOTE, meta={"x": "\0"}, result=result)))).streams

    assert b"a\\u0000b" in only.drafts[0].body
    assert only.drafts[0].result is not None


def test_terminal_events_share_one_key() -> None:
    prepared(request(stream(Draft(event_type="playbook.failed", idempotency_key=END_KEY, meta={"error": {}}))))
