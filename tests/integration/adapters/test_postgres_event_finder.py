"""Events by what they are about, in PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_finder import PostgresEventFinder
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.pool import open_pool
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_core.append import AppendRequest, PreparedRequest, StreamAppend, StreamStart, prepare
from noetl_core.catalog import to_draft
from noetl_core.errors import NotFound
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.ids import Snowflake, frame_id, stage_id
from noetl_core.ports.event_log import Scope
from noetl_core.stages.events import FrameCommitted, FrameStarted
from noetl_servicekit.metrics import MetricSet

IDS = Snowflake(1021)
OURS, THEIRS = Scope(tenant_id="t", organization_id="o"), Scope(tenant_id="rival", organization_id="o")


def prepared(request: AppendRequest) -> PreparedRequest:
    return prepare(
        request, next_event_id=lambda: IDS.next(int(time.time() * 1000)), now=datetime.now(UTC), shard_count=64
    )


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=2, application_name="test")
    yield pool
    await pool.close()


async def test_the_last_event_of_a_frame_is_found_by_its_owner(pool: ConnectionPool) -> None:
    log = GroupCommit(
        PostgresEventLog(pool), prepare=prepared, signal=CommitSignal(), metrics=AppendMetrics(MetricSet())
    )
    execution_id = IDS.next(int(time.time() * 1000))
    stage = stage_id(execution_id=execution_id, step="each", activation=1)
    first, second = (frame_id(stage_id=stage, index=index) for index in range(2))
    of: dict[str, Any] = {"stage_id": stage, "step": "each", "loop_id": "l", "attempt": 1, "worker_id": "w"}
    contents = (
        PlaybookInitialized(path="p", version=1, catalog_id="1", payload_ref=None),
        FrameStarted(frame_id=first, **of),
        FrameCommitted(frame_id=first, frame_index=0, start=0, stop=2, success=2, failed=0, **of),
        FrameStarted(frame_id=second, **of),
    )
    drafts = tuple(to_draft(content, idempotency_key=f"k/{place}") for place, content in enumerate(contents))
    stream = StreamAppend(execution_id=execution_id, drafts=drafts, start=StreamStart())
    await log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))
    finder = PostgresEventFinder(pool)

    ended, begun = [await finder.last_of_frame(OURS, execution_id, frame) for frame in (first, second)]

    assert ended is not None and begun is not None
    assert (ended.stream_version, ended.envelope().event_type) == (3, "frame.committed")
    assert begun.envelope().event_type == "frame.started"
    assert await finder.last_of_frame(THEIRS, execution_id, first) is None
    assert await finder.last_of_frame(OURS, execution_id, f"{stage}-9") is None
    event_id = ended.envelope().event_id
    assert (await finder.find(None, event_id)).stream_version == 3
    with pytest.raises(NotFound):
        await finder.find(THEIRS, event_id)
    await log.close()
