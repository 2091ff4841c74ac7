"""Appends to measure with: events as large and as varied as those of a playbook, spelt before the clock runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import asyncpg
from noetl.event.v1 import event_pb2 as pb
from noetl_contracts.mapping.events import append_message, draft_message
from noetl_core.append import AppendRequest, StreamAppend, StreamStart
from noetl_core.envelope import Draft
from noetl_core.ids import Snowflake

TENANT = "default"
ORGANIZATION = "default"
EVENT_TYPE = "benchmark.measured"
"""Not one of NoETL's own: planner and projector take it in and have nothing to decide."""

_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
_STREAMS_PER_START = 50
_EVENTS_PER_AGGREGATE = 5


async def new_execution_ids(owner_dsn: str, count: int) -> tuple[int, ...]:
    """Ids that are nobody else's, since their node number was drawn for them."""
    connection = await asyncpg.connect(owner_dsn)
    try:
        ids = Snowflake(await connection.fetchval("SELECT nextval('noetl.snowflake_node')"))
    finally:
        await connection.close()
    return tuple(ids.next(time.time_ns() // 1_000_000) for _ in range(count))


def start_requests(execution_ids: Sequence[int]) -> list[AppendRequest]:
    """Creates the streams to append to."""
    began = Draft(event_type="benchmark.began", idempotency_key="began", trace=_TRACE)
    return [
        AppendRequest(
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            streams=tuple(
                StreamAppend(execution_id=execution_id, drafts=(began,), start=StreamStart())
                for execution_id in execution_ids[first : first + _STREAMS_PER_START]
            ),
        )
        for first in range(0, len(execution_ids), _STREAMS_PER_START)
    ]


def one_event(execution_id: int, *, key: str) -> AppendRequest:
    """An append of one event."""
    return AppendRequest(
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        streams=(StreamAppend(execution_id=execution_id, drafts=(_result(key),)),),
    )


def encoded_requests(
    execution_ids: Sequence[int], *, key_prefix: str, requests: int, drafts_per_request: int
) -> list[bytes]:
    """Requests as they go over the wire, each to one execution, in turns."""
    empty = append_message(AppendRequest(tenant_id=TENANT, organization_id=ORGANIZATION, streams=()))
    kinds = [draft_message(draft) for draft in (_entered(""), _claimed(""), _result(""))]
    encoded = []
    for number in range(requests):
        message = pb.AppendRequest()
        message.CopyFrom(empty)
        message.places_only = drafts_per_request > 1  # as producers in bulk ask
        stream = message.streams.add(execution_id=str(execution_ids[number % len(execution_ids)]))
        for place in range(number * drafts_per_request, (number + 1) * drafts_per_request):
            draft = stream.drafts.add()
            draft.CopyFrom(kinds[place % len(kinds)])
            draft.idempotency_key = f"{key_prefix}/{place}"
            if draft.aggregate_id:
                draft.aggregate_id = f"{key_prefix}-{place // _EVENTS_PER_AGGREGATE:026d}"
        encoded.append(message.SerializeToString())
    return encoded


def _entered(key: str) -> Draft:
    """As `step.enter`: about the execution itself."""
    return Draft(
        event_type=EVENT_TYPE,
        idempotency_key=key,
        node_name="transform",
        meta={"step": "transform", "activation": 1, "cause_step": "extract", "decided_through": 17},
        trace=_TRACE,
    )


def _claimed(key: str) -> Draft:
    """As `command.claimed`: about an aggregate with versions of its own."""
    return Draft(
        event_type=EVENT_TYPE,
        idempotency_key=key,
        aggregate_type="benchmark",
        aggregate_id="item",
        node_name="transform",
        meta={"worker_id": "worker-local-4711", "lease_seconds": 45.0, "after": None},
        trace=_TRACE,
    )


def _result(key: str) -> Draft:
    """As `call.done`: with a result that refers to a payload."""
    return Draft(
        event_type=EVENT_TYPE,
        idempotency_key=key,
        aggregate_type="benchmark",
        aggregate_id="item",
        node_name="transform",
        result={
            "status": "ok",
            "reference": {
                "ref_id": "noetl://execution/7100000000000000001/result/transform/2c26b46b68ffc68f",
                "uri": f"noetl://tenant/{TENANT}/org/{ORGANIZATION}/payloads/sha256/{_DIGEST}",
                "sha256": _DIGEST,
                "media_type": "application/json",
                "bytes": 1842,
            },
            "parent_ref": None,
            "context": {"row_count": 120, "length": 5},
        },
        trace=_TRACE,
    )
