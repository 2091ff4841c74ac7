"""Rows in COPY's binary form are the rows that the same events have as arrays."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from noetl_adapters.postgres.copy_rows import EVENT_COLUMNS, event_rows_binary
from noetl_adapters.postgres.event_rows import event_columns
from noetl_core.append import AppendRequest, Head, LogView, Numbered, StreamAppend, StreamStart, prepare
from noetl_core.envelope import Draft, verify_link
from noetl_core.errors import NoetlError
from noetl_core.numbering import number

NOON = datetime(2026, 5, 6, 12, tzinfo=UTC)
AS_ARRAYS = (
    "execution_id", "stream_version", "event_id", "tenant_id", "organization_id", "event_type", "aggregate_type",
    "aggregate_id", "aggregate_version", "idempotency_key", "content_sha256", "event_time", "ingest_time", "node_name",
    "stage_id", "frame_id", "command_id", "loop_id", "epoch_id", "result", "prev_checksum", "checksum", "body",
)  # fmt: skip
"""The order in which `insert_events` names them."""


def draft(place: int) -> Draft:
    return Draft(
        event_type="user.note" if place % 5 else "user.other",
        idempotency_key=f"key/{place}",
        aggregate_type="frame" if place % 2 else "execution",
        aggregate_id=("ü" * place + "a") if place % 2 else "",
        node_name="node" if place % 3 else "",
        event_time=NOON - timedelta(seconds=1) if place % 4 == 0 else None,
        stage_id="stage" if place % 4 == 1 else "",
        frame_id="frame" if place % 4 == 2 else "",
        command_id="command" if place % 4 == 3 else "",
        meta=({}, {"loop_id": "l"}, {"epoch_id": "e", "loop_id": 3}, {"n": "\0"})[place % 4],
        result=(None, {"status": "ok"}, {"status": "ok", "context": {"m": "\0", "n": "\\u0000"}})[place % 3],
    )


def numbered() -> Numbered:
    ids = count(1_000)
    drafts = tuple(draft(place) for place in range(24))
    streams = (
        StreamAppend(execution_id=7, drafts=drafts),
        StreamAppend(execution_id=8, drafts=drafts, start=StreamStart()),
    )
    request = AppendRequest(tenant_id="acme", organization_id="ops", streams=streams)
    prepared = prepare(request, next_event_id=lambda: next(ids), now=NOON, shard_count=4)
    head = Head(7, "acme", "ops", 1, version=41, checksum="c" * 64, ingest_time=NOON)
    return number([prepared], LogView(now=NOON, heads={7: head}, aggregate_versions={(7, "üa"): 5}))


def read_field(name: str, data: bytes) -> Any:
    if name in {"execution_id", "stream_version", "event_id", "aggregate_version"}:
        return struct.unpack("!q", data)[0]
    if name in {"event_time", "ingest_time"}:
        return datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=struct.unpack("!q", data)[0])
    if name == "result":
        assert data[0] == 1  # the version of jsonb's binary form
        return data[1:].decode()
    return data if name == "body" else data.decode()


def read_rows(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    place = len(b"PGCOPY\n\xff\r\n\0") + 8
    while data[place:] != b"\xff\xff":
        assert struct.unpack_from("!h", data, place)[0] == len(EVENT_COLUMNS)
        place += 2
        row: dict[str, Any] = {}
        for name in EVENT_COLUMNS:
            (length,) = struct.unpack_from("!i", data, place)
            place += 4
            row[name] = None if length < 0 else read_field(name, data[place : place + length])
            place += max(length, 0)
        rows.append(row)
    return rows


def test_rows_for_copy_are_the_rows_as_arrays() -> None:
    verdict = numbered()
    assert not any(isinstance(outcome, NoetlError) for outcome in verdict.outcomes)

    rows = read_rows(bytes(event_rows_binary(verdict.events)))

    assert sorted(EVENT_COLUMNS) == sorted(AS_ARRAYS)
    arrays = zip(*event_columns(verdict), strict=True)
    assert rows == [dict(zip(AS_ARRAYS, row, strict=True)) for row in arrays]
    assert len(rows) == 48
    for placed in verdict.events:
        verify_link(placed.stored)
