from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest
from noetl_adapters.postgres.migrate import SchemaMismatch, migrate, shipped_migrations
from noetl_testkit.backends import PostgresBackend, fresh_database


@pytest.fixture
def dsn(postgres_server: PostgresBackend) -> Iterator[str]:
    with fresh_database(postgres_server) as dsn:
        yield dsn


async def test_any_number_of_replicas_may_migrate_at_once(dsn: str) -> None:
    applied = await asyncio.gather(*(migrate(dsn, shard_count=8) for _ in range(6)))

    names = tuple(migration.name for migration in shipped_migrations())
    assert sorted(applied) == [()] * 5 + [names]


async def test_databases_of_one_server_may_be_migrated_at_once(postgres_server: PostgresBackend) -> None:
    with fresh_database(postgres_server) as one, fresh_database(postgres_server) as other:
        await asyncio.gather(migrate(one, shard_count=8), migrate(other, shard_count=8))


async def test_migrating_again_changes_nothing(dsn: str) -> None:
    await migrate(dsn, shard_count=8)

    assert await migrate(dsn, shard_count=8) == ()


async def test_the_number_of_shards_is_fixed_at_installation(dsn: str) -> None:
    await migrate(dsn, shard_count=8)

    with pytest.raises(SchemaMismatch):
        await migrate(dsn, shard_count=16)


async def test_an_edited_migration_and_one_from_the_future_are_refused(dsn: str) -> None:
    await migrate(dsn, shard_count=8)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("INSERT INTO noetl.schema_migration (name, sha256) VALUES ('9999_pre_later', 'x')")
        with pytest.raises(SchemaMismatch):
            await migrate(dsn, shard_count=8)
        await connection.execute("DELETE FROM noetl.schema_migration WHERE name = '9999_pre_later'")
        await connection.execute("UPDATE noetl.schema_migration SET sha256 = 'edited'")
        with pytest.raises(SchemaMismatch):
            await migrate(dsn, shard_count=8)
    finally:
        await connection.close()


FRAMES = """
INSERT INTO noetl.frame (
    execution_id, frame_id, tenant_id, organization_id, stage_id, step, frame_index, status, cursor, row_count,
    attempts, aggregate_version, stream_version)
SELECT 1, '1-s-' || place, 't', 'o', '1-s', 's', place, 'any', cursor, 1, attempts, 1, place + 1
FROM (VALUES
    (0, 2, '{"sequence":0,"slot":0,"start":0,"stop":1}'::json),
    (1, 1, '{"metrics":{"tasks":{"\\"slot\\":x\\u0000":{"slot":null,"sequence":[]}}},"sequence":1,"slot":0,"start":0,"stop":1}'),
    -- Parts that nobody has had are at no slot, however many there are.
    (2, 0, '{"sequence":0,"slot":0,"start":0,"stop":1}'),
    (3, 0, '{"sequence":0,"slot":0,"start":0,"stop":1}')
) AS known (place, attempts, cursor)
"""  # noqa: E501 - as it is spelt


async def test_a_database_with_rows_of_the_release_before_is_brought_up(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tuple(one for one in shipped_migrations() if one.name < "0029")
    with monkeypatch.context() as earlier:
        earlier.setattr("noetl_adapters.postgres.migrate.shipped_migrations", lambda: before)
        await migrate(dsn, shard_count=8)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(FRAMES)

        await migrate(dsn, shard_count=8)

        found = await connection.fetch(
            "SELECT command_id, worker_slot_id, slot_sequence FROM noetl.frame ORDER BY frame_index"
        )
    finally:
        await connection.close()
    assert [tuple(row) for row in found] == [("1-s-0/2", 0, 0), ("1-s-1/1", 0, 1), *[(None, None, None)] * 2]
