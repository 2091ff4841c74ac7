from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.event_log import COPY_FROM_ROWS, PostgresEventLog
from noetl_adapters.postgres.event_rows import EVENTS_PER_ROW
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.outbox import PostgresOutbox, open_outbox_pool
from noetl_adapters.postgres.pool import open_pool
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.telemetry import AppendMetrics
from noetl_contracts.messages import count_events, unpack_events
from noetl_contracts.subjects import TRACEPARENT
from noetl_core.append import AppendRequest, Hint, PreparedRequest, StreamStart, prepare
from noetl_core.envelope import StoredEvent
from noetl_core.errors import AlreadyExists, InvalidInput, NoetlError
from noetl_core.ids import Snowflake
from noetl_core.ports.leases import ShardLeases
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import (
    ACME,
    SHARDS,
    EventLogCompliance,
    chain_holds,
    history,
    new_id,
    note,
    request,
    start,
)
from noetl_testkit.until import until

_nodes = count()


def preparing() -> Callable[[AppendRequest], PreparedRequest]:
    ids = Snowflake(next(_nodes))

    def prepare_now(append: AppendRequest) -> PreparedRequest:
        return prepare(
            append,
            next_event_id=lambda: ids.next(int(time.time() * 1000)),
            now=datetime.now(UTC),
            shard_count=SHARDS,
        )

    return prepare_now


def group_commit(log: PostgresEventLog) -> GroupCommit:
    return GroupCommit(log, prepare=preparing(), signal=CommitSignal(), metrics=AppendMetrics(MetricSet()))


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=4, application_name="test")
    yield pool
    await pool.close()


@pytest.fixture
async def admin(installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(installed_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def outbox(installed_dsn: str) -> AsyncIterator[PostgresOutbox]:
    pool = open_outbox_pool(f"{installed_dsn}?role=noetl_publisher", application_name="test")
    yield PostgresOutbox(pool)
    await pool.close()


class TestPostgresEventLog(EventLogCompliance):
    @pytest.fixture
    def leases(self, pool: ConnectionPool) -> PostgresShardLeases:
        return PostgresShardLeases(pool)

    @pytest.fixture
    def log(self, leases: ShardLeases, pool: ConnectionPool) -> GroupCommit:
        return group_commit(PostgresEventLog(pool))


async def test_replicas_that_append_to_one_execution_leave_no_gap(pool: ConnectionPool) -> None:
    replicas = [group_commit(PostgresEventLog(pool)) for _ in range(3)]
    execution_id = await start(replicas[0])

    await asyncio.gather(*(replicas[n % 3].append(request(execution_id, note(f"k{n}"))) for n in range(210)))

    events = await history(replicas[0], execution_id)
    assert len(events) == 211
    assert chain_holds(events)


async def test_replicas_that_append_to_many_executions_in_any_order_do_not_deadlock(pool: ConnectionPool) -> None:
    replicas = [group_commit(PostgresEventLog(pool)) for _ in range(3)]
    ids = [await start(replicas[0]) for _ in range(10)]

    def over_all(key: str, order: list[int]) -> AppendRequest:
        streams = tuple(request(execution_id, note(key)).streams[0] for execution_id in order)
        return AppendRequest(tenant_id=ACME.tenant_id, organization_id=ACME.organization_id, streams=streams)

    await asyncio.gather(*(replicas[n % 3].append(over_all(f"k{n}", ids if n % 2 else ids[::-1])) for n in range(60)))

    for execution_id in ids:
        assert chain_holds(await history(replicas[0], execution_id))
        assert len(await history(replicas[0], execution_id)) == 61


async def test_replicas_that_race_for_start_keys_agree(pool: ConnectionPool) -> None:
    replicas = [group_commit(PostgresEventLog(pool)) for _ in range(3)]

    def start_under(key: str) -> AppendRequest:
        return request(new_id(), note("start"), start=StreamStart(start_key=key))

    outcomes = await asyncio.gather(
        *(replicas[n % 3].append(start_under(f"key {n % 5 if n % 2 else 4 - n % 5}")) for n in range(60))
    )

    assert len({one.event.envelope().execution_id for (one,) in outcomes}) == 5


async def test_a_batch_with_a_row_that_an_index_refuses_loses_only_that_request(pool: ConnectionPool) -> None:
    log, prepared = PostgresEventLog(pool), preparing()
    execution_id = await start(group_commit(log))
    missing_partition = request(1, note("start"), start=StreamStart())

    outcomes = await log.commit(
        [
            prepared(request(execution_id, note("a"))),
            prepared(missing_partition),
            prepared(request(execution_id, note("b"))),
        ]
    )

    assert isinstance(outcomes[1], InvalidInput)
    assert not isinstance(outcomes[0], NoetlError)
    assert not isinstance(outcomes[2], NoetlError)
    assert [event.envelope().idempotency_key for event in await history(group_commit(log), execution_id)] == [
        "start",
        "a",
        "b",
    ]


async def test_events_heads_and_outbox_are_one_transaction(pool: ConnectionPool, admin: asyncpg.Connection) -> None:
    log = group_commit(PostgresEventLog(pool))
    execution_id = await start(log)
    await log.append(request(execution_id, note("a"), note("b")))
    await admin.execute("REVOKE INSERT ON noetl.outbox FROM noetl_api")

    with pytest.raises(NoetlError):
        await log.append(request(execution_id, note("c")))

    assert len(await history(log, execution_id)) == 3
    rows = await admin.fetch("SELECT execution_id, first_version, last_version FROM noetl.outbox ORDER BY outbox_id")
    assert [tuple(row) for row in rows] == [(execution_id, 1, 1), (execution_id, 2, 3)]


def hint(execution_id: int) -> Hint:
    return Hint(subject="noetl.work.default.command", body=b'{"x":1}', execution_id=execution_id)


async def test_a_large_batch_leaves_the_same_rows_as_a_small_one(
    pool: ConnectionPool, admin: asyncpg.Connection, outbox: PostgresOutbox
) -> None:
    log = group_commit(PostgresEventLog(pool))
    small, large = await start(log), await start(log)
    result = {"status": "error", "reference": None, "parent_ref": None, "context": {"text": "ä\0\\ü", "n": 1.5}}
    drafts = [
        note(
            f"k{n} 'ü\t\\",
            node_name="step ü" if n % 2 else "",
            aggregate_type="command" if n % 3 else "execution",
            aggregate_id=f"c{n % 4}" if n % 3 else "",
            command_id="c" if n % 5 else "",
            stage_id="s" if n % 7 else "",
            frame_id="f" if n % 11 else "",
            event_time=datetime(1999, 12, 31, 23, 59, 59, n, tzinfo=UTC) if n % 2 else datetime(2026, 1, 1, tzinfo=UTC),
            result=result if n % 2 else None,
            meta={"loop_id": "l", "epoch_id": 7, "x": None} if n % 3 == 0 else {},
            trace="00-a-b-01" if n % 2 else 'quoted " \\ trace',
        )
        for n in range(COPY_FROM_ROWS)
    ]

    for draft in drafts:
        await log.append(request(small, draft, hints=(hint(small),)))
    await log.append(request(large, *drafts, hints=tuple(hint(large) for _ in drafts)))

    columns = (
        "stream_version, tenant_id, organization_id, event_type, aggregate_type, "
        "CASE aggregate_type WHEN 'command' THEN aggregate_id END, aggregate_version, idempotency_key, content_sha256, "
        "event_time, node_name, stage_id, frame_id, command_id, loop_id, epoch_id, result"
    )
    query = f"SELECT {columns} FROM noetl.event WHERE execution_id = $1 AND stream_version > 1 ORDER BY 1"  # noqa: S608
    by_insert, by_copy = await admin.fetch(query, small), await admin.fetch(query, large)
    assert [tuple(row) for row in by_copy] == [tuple(row) for row in by_insert]
    assert len(by_copy) == COPY_FROM_ROWS
    for execution_id in (small, large):
        assert chain_holds(await history(log, execution_id))
        rows = await outbox.take(range(64), limit=1000)
        messages = [row.message for row in rows if row.execution_id == execution_id]
        events = {str(event.envelope().event_id): event for event in await history(log, execution_id)}
        published = [message for message in messages if message.subject.startswith("noetl.events.")]
        hints = [message for message in messages if not message.subject.startswith("noetl.events.")]
        carried: list[StoredEvent] = []
        for message in published:
            told = unpack_events(message.body, message.headers)
            first = told[0].envelope()
            assert message.message_id == f"{first.event_id}+{len(told)}" if len(told) > 1 else str(first.event_id)
            assert message.subject.startswith(f"noetl.events.acme.ops.{execution_id}.")
            assert message.headers.get(TRACEPARENT, "") == first.trace
            carried += told
        assert carried == list(events.values())
        assert {(message.subject, message.body) for message in hints} == {(hint(small).subject, hint(small).body)}
        assert len({message.message_id for message in hints}) == COPY_FROM_ROWS


async def test_the_outbox_gives_whole_rows_until_there_are_messages_enough(
    pool: ConnectionPool, outbox: PostgresOutbox
) -> None:
    log = group_commit(PostgresEventLog(pool))
    execution_id = await start(log)
    await log.append(request(execution_id, *(note(f"k{n}") for n in range(2 * EVENTS_PER_ROW + 1))))
    taken: list[list[int]] = []

    while rows := await outbox.take(range(64), limit=2):
        events = [event for row in rows for event in unpack_events(row.message.body, row.message.headers)]
        taken.append([event.stream_version for event in events])
        assert sum(count_events(row.message.headers) for row in rows) == len(events), "by which a publisher goes on"
        await outbox.delete([row.outbox_id for row in rows])

    first, second = EVENTS_PER_ROW + 1, 2 * EVENTS_PER_ROW + 1
    assert taken == [[*range(1, first + 1)], [*range(first + 1, second + 1)], [second + 1]]


async def test_columns_are_extracts_of_the_bytes(pool: ConnectionPool, admin: asyncpg.Connection) -> None:
    log = group_commit(PostgresEventLog(pool))
    execution_id = await start(log)
    result = {"status": "ok", "reference": None, "parent_ref": None, "context": {"n": 1}}
    await log.append(
        request(execution_id, note("k", node_name="n", command_id="c", meta={"loop_id": "l"}, result=result))
    )

    row = await admin.fetchrow("SELECT * FROM noetl.event WHERE idempotency_key = 'k'")
    envelope = (await history(log, execution_id))[1].envelope()

    assert (row["event_id"], row["tenant_id"], row["organization_id"]) == (envelope.event_id, "acme", "ops")
    assert (row["event_type"], row["content_sha256"]) == (envelope.event_type, envelope.content_sha256)
    assert (row["node_name"], row["command_id"], row["loop_id"]) == ("n", "c", "l")
    assert row["event_time"] == envelope.event_time


@pytest.mark.parametrize(
    "result",
    [
        '{"status": "ok", "rows": [1]}',
        '{"status": "ok", "context": {"rows": []}}',
        '{"status": "ok", "context": {"data": 1}}',
        '{"status": "ok", "context": [1]}',
        '{"status": "ok", "reference": "text"}',
        '{"status": "fine"}',
        "{}",
        "[]",
        '"ok"',
    ],
)
async def test_the_database_itself_refuses_results_of_another_shape(
    pool: ConnectionPool, admin: asyncpg.Connection, result: str
) -> None:
    execution_id = await start(group_commit(PostgresEventLog(pool)))

    columns = await admin.fetchval(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute "
        "WHERE attrelid = 'noetl.event'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
    )

    selected = ", ".join(f"another.{column}" for column in columns.split(", "))

    with pytest.raises(asyncpg.CheckViolationError, match="chk_event_result_shape"):
        await admin.execute(
            f"INSERT INTO noetl.event ({columns}) SELECT {selected} FROM noetl.event AS event, "  # noqa: S608 - our own
            "jsonb_populate_record(event, jsonb_build_object("
            "'stream_version', 2, 'event_id', 1, 'idempotency_key', 'other', 'result', $2::jsonb)) AS another "
            "WHERE event.execution_id = $1",
            execution_id,
            result,
        )


async def test_the_index_of_loops_is_used(pool: ConnectionPool, admin: asyncpg.Connection) -> None:
    execution_id = await start(group_commit(PostgresEventLog(pool)))
    await admin.execute("SET enable_seqscan = off")

    plan = await admin.fetch(
        "EXPLAIN SELECT * FROM noetl.event WHERE execution_id = $1 AND loop_id = 'l' AND event_type = 'loop.done'",
        execution_id,
    )

    assert "loop_id" in "\n".join(row[0] for row in plan)


async def test_named_indexes_stand_on_every_partition(admin: asyncpg.Connection) -> None:
    names = {
        "uidx_event_event_id",
        "uidx_event_idempotency_key",
        "uidx_event_aggregate_version",
        "uidx_event_command_issued_command_id",
        "uidx_event_loop_done_loop_id",
        "uidx_event_loop_fanin_completed",
        "uidx_event_checkpoint_committed",
        "idx_event_loop_id_type",
        "idx_event_exec_stage_event_id_desc",
        "idx_event_exec_frame_event_id_desc",
    }
    partitions = await admin.fetchval("SELECT count(*) FROM pg_inherits WHERE inhparent = 'noetl.event'::regclass")

    rows = await admin.fetch(
        "SELECT parent.relname, count(*) FROM pg_inherits "
        "JOIN pg_class AS parent ON parent.oid = inhparent WHERE parent.relkind = 'I' GROUP BY 1"
    )

    covered = {row[0]: row[1] for row in rows}
    assert {name: covered.get(name) for name in names} == dict.fromkeys(names, partitions)


async def test_an_append_of_an_event_that_is_there_in_another_form_is_refused(pool: ConnectionPool) -> None:
    log = group_commit(PostgresEventLog(pool))
    execution_id = await start(log)

    with pytest.raises(AlreadyExists):
        await log.append(request(execution_id, note("other"), start=StreamStart()))


async def test_a_page_of_large_events_is_short_and_the_rest_follows(pool: ConnectionPool) -> None:
    log = group_commit(PostgresEventLog(pool))
    execution_id = await start(log)
    for first in range(0, 120, 40):
        large = [replace(note(f"k{n}"), meta={"text": "x" * 60_000}) for n in range(first, first + 40)]
        await log.append(request(execution_id, *large))

    sizes: list[int] = []
    while sum(sizes) < 121:
        page = await log.read(None, execution_id, from_version=sum(sizes) + 1, limit=500)
        sizes.append(len(page.events))

    assert sum(sizes) == 121
    assert len(sizes) > 1


async def test_a_commit_over_many_executions_names_each_of_them(
    pool: ConnectionPool, admin: asyncpg.Connection
) -> None:
    heard: list[str] = []
    await admin.add_listener("noetl_commit", lambda connection, pid, channel, notice: heard.extend(notice.split()))
    log = group_commit(PostgresEventLog(pool))
    ids = [await start(log) for _ in range(150)]
    await until(lambda: len(heard) == 150)
    heard.clear()
    streams = tuple(request(execution_id, note("k")).streams[0] for execution_id in ids)

    await log.append(AppendRequest(tenant_id=ACME.tenant_id, organization_id=ACME.organization_id, streams=streams))

    await until(lambda: {int(item.split(":")[1]) for item in heard} == set(ids))
