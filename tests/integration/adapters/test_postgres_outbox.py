import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import asyncpg
import pytest
from noetl_adapters.postgres.commit_listener import PostgresCommitListener
from noetl_adapters.postgres.commit_signal import PostgresCommitSignal
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.migrate import migrate
from noetl_adapters.postgres.outbox import MOST_PASSED_OVER, PostgresOutbox, open_outbox_pool
from noetl_adapters.postgres.outbox_leases import PostgresOutboxLeases
from noetl_cli.db import mark_restored
from noetl_contracts.subjects import LOG_BRANCH
from noetl_core.errors import Unavailable
from noetl_core.ports.outbox import CommitSignal, Outbox, OutboxLeases
from noetl_testkit.backends import PostgresBackend, TemplateDatabase, fresh_database, template_database
from noetl_testkit.compliance.outbox import (
    CommitSignalCompliance,
    OutboxCompliance,
    OutboxLeasesCompliance,
    message,
    publisher,
)

SHARDS = 5
AS_PUBLISHER = "?role=noetl_publisher"
"""Every test works with the grants that the service has."""


@pytest.fixture(scope="module")
def template(postgres_server: PostgresBackend) -> Iterator[TemplateDatabase]:
    async def prepare(dsn: str) -> None:
        await migrate(dsn, shard_count=SHARDS)

    with template_database(postgres_server, prepare) as template:
        yield template


@pytest.fixture
def dsn(postgres_server: PostgresBackend, template: TemplateDatabase) -> Iterator[str]:
    with fresh_database(postgres_server, template) as dsn:
        yield dsn


@pytest.fixture
async def admin(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = open_outbox_pool(dsn + AS_PUBLISHER, application_name="test", max_size=5)
    yield pool
    await pool.close()


async def insert(connection: asyncpg.Connection, numbers: range, *, shard: int) -> None:
    for row in map(message, numbers):
        await connection.execute(
            "INSERT INTO noetl.outbox (shard, execution_id, subject, message_id, headers, body) "
            "VALUES ($1, 1, $2, $3, $4, $5)",
            shard,
            row.subject,
            row.message_id,
            json.dumps(row.headers),
            row.body,
        )


class TestPostgresOutbox(OutboxCompliance):
    admin: asyncpg.Connection

    @pytest.fixture
    def outbox(self, pool: ConnectionPool, admin: asyncpg.Connection) -> PostgresOutbox:
        self.admin = admin
        return PostgresOutbox(pool)

    async def write(self, outbox: Outbox, numbers: range, *, shard: int) -> None:
        await insert(self.admin, numbers, shard=shard)

    async def test_a_row_that_commits_late_is_taken_although_later_ones_are_gone(
        self, outbox: PostgresOutbox, admin: asyncpg.Connection, dsn: str
    ) -> None:
        late = await asyncpg.connect(dsn)
        transaction = late.transaction()
        await transaction.start()
        await insert(late, range(1, 2), shard=0)
        await insert(admin, range(2, 3), shard=0)
        early = await outbox.take({0}, limit=10)
        await outbox.delete([row.outbox_id for row in early])

        await transaction.commit()
        await late.close()

        assert [row.message.message_id for row in early] == ["2"]
        assert [row.message.message_id for row in await outbox.take({0}, limit=10)] == ["1"]

    @pytest.mark.parametrize("name", ["take", "delete_and_take"])
    async def test_a_long_outbox_is_read_by_its_index_whatever_the_plan_was_made_for(
        self, pool: ConnectionPool, name: str
    ) -> None:
        statement = PostgresOutbox(pool)._sql[name]
        for place, value in (("$1", "ARRAY[0, 1]"), ("$2", "500"), ("$3", "ARRAY[1, 2]")):
            statement = statement.replace(place, value)
        plan = await pool.fetch(f"EXPLAIN {statement}")

        assert "Index Scan using outbox_pkey" in "\n".join(row[0] for row in plan)

    @pytest.mark.parametrize("count", [1, 2, MOST_PASSED_OVER, MOST_PASSED_OVER + 1])
    async def test_what_goes_is_not_taken_again_and_what_came_late_below_it_is(
        self, outbox: PostgresOutbox, admin: asyncpg.Connection, dsn: str, count: int
    ) -> None:
        late = await asyncpg.connect(dsn)
        transaction = late.transaction()
        await transaction.start()
        await insert(late, range(1, 2), shard=0)
        await insert(admin, range(2, 2 + count), shard=0)
        early = await outbox.take({0}, limit=100)
        await transaction.commit()
        await late.close()
        await insert(admin, range(1000, 1001), shard=0)

        following = await outbox.take({0}, limit=100, published=[row.outbox_id for row in early])

        assert [row.message.message_id for row in following] == ["1", "1000"]
        assert await admin.fetchval("SELECT count(*) FROM noetl.outbox") == 2

    async def test_a_database_that_is_away_is_unavailable(self, postgres_server: PostgresBackend) -> None:
        pool = open_outbox_pool("postgresql://nobody@127.0.0.1:9/none", application_name="test")

        with pytest.raises(Unavailable):
            await PostgresOutbox(pool).take({0}, limit=1)
        await pool.close()


class TestPostgresOutboxLeases(OutboxLeasesCompliance):
    @pytest.fixture
    def leases(self, pool: ConnectionPool) -> OutboxLeases:
        return PostgresOutboxLeases(pool)

    async def let_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def test_each_change_of_hands_is_a_new_epoch(self, leases: OutboxLeases, admin: asyncpg.Connection) -> None:
        await self.hold(leases, "ada")
        await self.hold(leases, "ada")
        await leases.replace(publisher("ada", "2"))
        await self.hold(leases, "ada", "2")

        assert await admin.fetchval("SELECT DISTINCT epoch FROM noetl.outbox_lease") == 2


async def test_a_database_without_a_schema_is_not_ready_yet(postgres_server: PostgresBackend) -> None:
    with fresh_database(postgres_server) as empty:
        pool = open_outbox_pool(empty, application_name="test")
        with pytest.raises(Unavailable, match="not been set up"):
            await PostgresOutboxLeases(pool).shard_count()
        await pool.close()


class TestPostgresCommitSignal(CommitSignalCompliance):
    admin: asyncpg.Connection

    @pytest.fixture
    async def signal(self, dsn: str, admin: asyncpg.Connection) -> AsyncIterator[PostgresCommitSignal]:
        self.admin = admin
        signal = PostgresCommitSignal()
        listening = asyncio.create_task(listen_for_ever(dsn + AS_PUBLISHER, signal))
        yield signal
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening

    async def commit(self, signal: CommitSignal, *shards: int) -> None:
        notice = " ".join(f"{shard}:1:7" for shard in shards)
        await self.admin.execute("SELECT pg_notify('noetl_commit', $1)", notice)

    async def test_a_commit_that_moved_too_much_to_list_concerns_everybody(self, signal: PostgresCommitSignal) -> None:
        await self.settle(signal)

        await self.admin.execute("SELECT pg_notify('noetl_commit', '*')")

        assert await signal.wait({1}, timeout_seconds=60)

    async def test_a_listener_that_was_cut_off_comes_back_and_says_that_anything_may_have_happened(
        self, signal: PostgresCommitSignal
    ) -> None:
        await self.settle(signal)

        await self.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'test-listener' AND datname = current_database()"
        )

        assert await signal.wait({1}, timeout_seconds=60)
        await self.commit(signal, 1)
        assert await signal.wait({1}, timeout_seconds=60)


async def listen_for_ever(dsn: str, signal: PostgresCommitSignal) -> None:
    listener = PostgresCommitListener(dsn, application_name="test-listener", hear=signal.hear)
    while True:
        with suppress(Unavailable):
            await listener.run(lambda: None)


async def test_messages_are_marked_with_the_branch_of_the_log_that_a_restore_changes(
    pool: ConnectionPool, admin: asyncpg.Connection, dsn: str
) -> None:
    await insert(admin, range(1), shard=0)
    (before,) = await PostgresOutbox(pool).take([0], limit=10)

    branch = await mark_restored(dsn)
    async with pool.acquire() as connection:
        connection.terminate()  # as those are that a restored server had never known
    (after,) = await PostgresOutbox(pool).take([0], limit=10)

    assert before.message.headers[LOG_BRANCH] != branch
    assert after.message.headers[LOG_BRANCH] == branch
