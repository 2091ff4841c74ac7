"""Rows name what they belong to, under the names of the requirements, and every value is that of the log (ADR 0081)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_columns import expected_columns
from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.projections import PostgresProjections
from noetl_core.canonical import encode, sha256_hex
from noetl_core.envelope import StoredEvent
from noetl_core.executions.events import CtxUpdated
from noetl_core.fold import empty
from noetl_core.ports.projection_store import ProjectedExecution
from noetl_core.recorded import record
from noetl_core.sharding import shard_of
from noetl_core.surfaces.shapes import Surface
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.conformance import load_cases
from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.histories import EXECUTION, History, choices, initialized
from noetl_testkit.in_memory_runtime import InMemoryRuntime
from noetl_testkit.telling_histories import telling_history

CASES = Path(__file__).parents[2] / "conformance/cases"
CASE = "frames/stages_that_lead_to_each_other"
"""Rows in frames, one of which is bisected, then a fan-out of which an item fails, then a reduce."""

COLUMNS = {
    "stage": "stage_id execution_id parent_event_id parent_stage_id loop_event_id opened_event_id closed_event_id kind "
    "step_name dsl_ref status frame_policy started_at ended_at",
    "frame": "frame_id stage_id execution_id parent_frame_id command_id claimed_event_id terminal_event_id cursor "
    "row_count status owner_worker lease_until output_ref events_emitted attempts created_at completed_at",
    "command": "stage_id frame_id",
    "event": "stage_id frame_id command_id epoch_id loop_epoch_id",
    "loop": "loop_id epoch_id total done failed collection_ref completed total_shards status",
    "checkpoint": "execution_id shard_id epoch last_event_id committed_at",
    "projection_checkpoint": "shard_id last_projected_event_id last_projected_at lag_ms",
    "execution_shard": "shard_id owner_runtime_id owner_instance epoch leased_until updated_at",
    "execution": "last_projected_event_id status last_event_type last_node_name start_time end_time state error",
    "projection": "tenant_id organization_id execution_id from_event_id to_event_id version checksum event_count "
    "source_event_id event_time_watermark projected_at projection_lag_ms",
}
INDEXES = {
    "frame_open_idx", "idx_stage_execution_step_loop", "idx_frame_stage_frame", "idx_frame_command",
    "idx_command_stage_worker_slot", "idx_event_exec_stage_event_id_desc", "idx_event_exec_frame_event_id_desc",
    "uidx_frame_claim_key",
}  # fmt: skip


@pytest.fixture
async def admin(installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(installed_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def pool(installed_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(f"{installed_dsn}?role=noetl_projector", min_size=1, max_size=2, application_name="test")
    yield pool
    await pool.close()


@pytest.fixture
def projections(pool: ConnectionPool) -> PostgresProjections:
    return PostgresProjections(pool)


@pytest.fixture(scope="module")
def events() -> list[StoredEvent]:
    """What services have written of one run."""
    case = next(one for one in load_cases(CASES) if one.name == CASE)
    runtime = InMemoryRuntime()
    came = asyncio.run(runtime.run(case))
    assert came.state is not None
    return list(runtime.log.streams[came.state.execution.execution_id].events)


async def store(admin: asyncpg.Connection, events: Sequence[StoredEvent]) -> None:
    """The log as it is, with the ids that its events have."""
    execution_id = events[0].envelope().execution_id
    await admin.execute("SELECT noetl.ensure_event_partition($1, $2)", execution_id, execution_id + 1)
    for stored in events:
        columns = {
            **expected_columns(stored.envelope()),
            "execution_id": execution_id,
            "stream_version": stored.stream_version,
            "aggregate_version": stored.aggregate_version,
            "ingest_time": stored.ingest_time,
            "prev_checksum": stored.prev_checksum,
            "checksum": stored.checksum,
            "body": stored.body,
        }
        places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
        await admin.execute(
            f"INSERT INTO noetl.event ({', '.join(columns)}) VALUES ({places})",  # noqa: S608 - names of columns
            *columns.values(),
        )


async def project(projections: PostgresProjections, events: Sequence[StoredEvent]) -> SurfaceFold:
    surfaces = SurfaceFold(empty(events[0].envelope().execution_id))
    surfaces.add_all(map(record, events))
    state = surfaces.state
    shard = shard_of(state.execution.execution_id, 64)
    rows = surfaces.changed_parts()
    row = ProjectedExecution(state=state, rows=rows, shard=shard, epoch=1, base_version=0, upcasters=UPCASTERS.digest)
    await projections.write([row])
    return surfaces


@pytest.mark.parametrize("table", sorted(COLUMNS))
async def test_a_column_is_found_by_the_name_of_its_requirement(admin: asyncpg.Connection, table: str) -> None:
    rows = await admin.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'noetl' AND table_name = $1", table
    )

    assert set(COLUMNS[table].split()) - {row[0] for row in rows} == set()


async def test_so_is_an_index(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch("SELECT indexname FROM pg_indexes WHERE schemaname = 'noetl'")

    assert INDEXES - {row[0] for row in rows} == set()


async def test_a_stage_names_the_event_that_it_was_opened_for(
    admin: asyncpg.Connection, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    await store(admin, events)
    await project(projections, events)

    stages = await admin.fetch(
        "SELECT stage.kind, cause.event_type, cause.node_name, cause.stream_version,"
        " (convert_from(opened.body, 'UTF8')::json -> 'meta' ->> 'decided_through')::bigint AS decided_on,"
        " parent.kind AS parent_kind"
        " FROM noetl.stage"
        " JOIN noetl.event AS cause ON cause.event_id = stage.parent_event_id"
        " JOIN noetl.event AS opened ON opened.event_id = stage.opened_event_id"
        " LEFT JOIN noetl.stage AS parent ON parent.stage_id = stage.parent_stage_id"
        " ORDER BY stage.opened_event_id"
    )

    assert [(row["kind"], row["event_type"], row["node_name"], row["parent_kind"]) for row in stages] == [
        ("loop", "command.completed", "split:evaluate_loop", None),
        ("fanout", "command.completed", "split:evaluate_leave", None),
        ("reduce", "frame.committed", "each", "fanout"),
    ]
    assert all(row["stream_version"] == row["decided_on"] for row in stages)


async def test_a_frame_names_its_attempt_and_the_claim_that_the_log_has(
    admin: asyncpg.Connection, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    await store(admin, events)
    await project(projections, events)

    frames = await admin.fetch(
        "SELECT frame.*, claim.idempotency_key AS claim_key, parent.status AS parent_status"
        " FROM noetl.frame"
        " JOIN noetl.event AS claim ON claim.event_id = frame.claimed_event_id"
        " LEFT JOIN noetl.frame AS parent ON parent.frame_id = frame.parent_frame_id"
    )
    ends = await admin.fetch(
        "SELECT event_type, frame.step, frame.attempts, frame.terminal_event_id IS NOT NULL AS is_over"
        " FROM noetl.event JOIN noetl.frame USING (execution_id, command_id)"
        " WHERE event_type IN ('loop.shard.done', 'loop.shard.failed') ORDER BY event.stream_version"
    )

    assert len(frames) == len({row["command_id"] for row in frames}) == 10
    for row in frames:
        assert row["command_id"] == f"{row['frame_id']}/{row['attempts']}"
        claim = f"{row['stage_id']}/{row['worker_slot_id']}/{row['slot_sequence']}"
        assert row["claim_key"] == f"frame/{claim}"
    assert [row["parent_status"] for row in frames].count("split") == 4
    assert [tuple(row) for row in ends] == [
        ("loop.shard.done", "each", 1, True),
        ("loop.shard.failed", "each", 2, True),
        ("loop.shard.done", "each", 1, True),
    ]


async def test_a_part_that_nobody_has_had_has_neither(
    admin: asyncpg.Connection, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    split = next(one.stream_version for one in events if one.envelope().event_type == "frame.failed")
    await project(projections, events[:split])

    rows = await admin.fetch("SELECT status, command_id, worker_slot_id, slot_sequence FROM noetl.frame")

    assert sorted(row["status"] for row in rows) == ["split", "waiting", "waiting"]
    assert {tuple(row)[1:] for row in rows if row["status"] == "waiting"} == {(None, None, None)}


async def test_one_claim_gives_one_frame(
    admin: asyncpg.Connection, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    await project(projections, events)

    with pytest.raises(asyncpg.UniqueViolationError):
        await admin.execute(
            "INSERT INTO noetl.frame (execution_id, frame_id, tenant_id, organization_id, stage_id, step, frame_index,"
            " status, cursor, row_count, attempts, aggregate_version, stream_version)"
            " SELECT execution_id, 'other', tenant_id, organization_id, stage_id, step, frame_index,"
            " status, cursor, row_count, attempts, aggregate_version, stream_version FROM noetl.frame LIMIT 1"
        )


async def test_what_a_worker_evaluates_for_a_stage_names_it(
    admin: asyncpg.Connection, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    await project(projections, events)

    rows = await admin.fetch(
        "SELECT command.step, stage.step_name, command.frame_id FROM noetl.command"
        " LEFT JOIN noetl.stage USING (execution_id, stage_id) ORDER BY issued_version"
    )

    assert [tuple(row) for row in rows] == [
        ("source", None, None),
        ("split:evaluate_loop", "split", None),
        ("split:evaluate_leave", "split", None),
    ]


async def test_an_event_has_its_epoch_by_whichever_name_it_was_told(
    admin: asyncpg.Connection, events: list[StoredEvent]
) -> None:
    await store(admin, events)

    rows = await admin.fetch("SELECT event_type, loop_epoch_id, loop_id, epoch_id, node_name FROM noetl.event")

    told = ("loop.", "stage.", "frame.")
    of_loops = [row for row in rows if row["event_type"].startswith(told)]
    execution_id = events[0].envelope().execution_id
    assert {row["loop_epoch_id"] for row in of_loops} == {
        f"loop_{execution_id}_{step}_1" for step in ("split", "each", "total")
    }
    for row in rows:
        assert row["loop_epoch_id"] == (row["epoch_id"] or row["loop_id"])


async def test_loops_tell_how_far_they_are_under_the_names_of_their_requirement(
    admin: asyncpg.Connection, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    await project(projections, events)

    rows = await admin.fetch(
        "SELECT step, total, done, failed, completed, total_shards, epoch_id = loop_id FROM noetl.loop"
        " ORDER BY started_version"
    )

    assert [tuple(row) for row in rows] == [
        ("split", 5, 5, 1, True, None, True),
        ("each", 3, 3, 1, True, 3, True),
        ("total", 1, 1, 0, True, None, True),
    ]


async def test_every_row_has_the_checksum_by_which_it_counts_and_the_events_that_it_is_made_of(
    admin: asyncpg.Connection, pool: ConnectionPool, projections: PostgresProjections, events: list[StoredEvent]
) -> None:
    await store(admin, events)
    surfaces = await project(projections, events)
    ids = {one.stream_version: one.envelope().event_id for one in events}

    rows = await pool.fetch("SELECT * FROM noetl.projection")

    assert {(row["surface"], row["row_key"]): row["checksum"] for row in rows} == checksums(surfaces)
    for row in rows:
        assert (row["tenant_id"], row["organization_id"]) == ("t", "o")
        assert 1 <= row["from_version"] <= row["to_version"] == row["version"] <= len(events)
        assert (row["from_event_id"], row["to_event_id"]) == (ids[row["from_version"]], ids[row["to_version"]])
        assert (row["event_count"], row["source_event_id"]) == (len(events), ids[len(events)])
        assert row["projection_lag_ms"] == pytest.approx(
            (row["projected_at"] - row["event_time_watermark"]).total_seconds() * 1000
        )
    types = {one.stream_version: one.envelope().event_type for one in events}
    firsts = {(row["surface"], types[row["from_version"]]) for row in rows}
    assert firsts == {
        ("execution", "playbook.initialized"),
        ("stages", "stage.opened"),
        ("frames", "frame.dispatched"),
        ("commands", "command.issued"),
        ("loops", "stage.opened"),
    }


def checksums(surfaces: SurfaceFold) -> dict[tuple[str, str], str]:
    """By our own code, of rows that no database has seen."""
    return {
        (str(surface), key): sha256_hex(encode(dict(row)))
        for surface, rows in surfaces.changed().items()
        for key, row in rows.items()
    }


@pytest.mark.parametrize("seed", range(6))
async def test_checksums_are_those_of_rows_of_any_history(
    admin: asyncpg.Connection, projections: PostgresProjections, seed: int
) -> None:
    """Objects, errors, lost and split frames, texts that need escapes, and zeros that PostgreSQL cannot read."""
    odd = {"text": 'ü "quoted" \\u0000 \\ \n\t\x01 \u2028 \U0001f600', "zero": "a\0b", "n": 1.5e-7}
    if seed < 3:
        stored = drawn_frame_history(choices(seed), moves=40).stored
    elif seed < 5:
        stored = telling_history(choices(seed)).stored
    else:
        stored = History(EXECUTION).add(initialized("odd"), CtxUpdated(step="a", values=odd)).stored

    surfaces = await project(projections, stored)

    rows = await admin.fetch("SELECT surface, row_key, checksum FROM noetl.projection")
    assert {(row[0], row[1]): row[2] for row in rows} == checksums(surfaces)
    assert seed < 5 or b"\\u0000" in encode(surfaces.changed()[Surface.EXECUTION][str(EXECUTION)])
