"""Each service has a database role with exactly the grants that it needs; nobody may change an event."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

TABLES = {
    "noetl_api": {
        "catalog": {"SELECT", "INSERT"},
        "credential": {"SELECT", "INSERT", "UPDATE", "DELETE"},
        "event": {"SELECT", "INSERT"},
        "execution_shard": {"SELECT", "INSERT", "UPDATE"},
        "installation": {"SELECT"},
        "outbox": {"INSERT"},
        "routing_snapshot": {"SELECT", "INSERT", "UPDATE", "DELETE"},
        "runtime": {"SELECT", "INSERT", "UPDATE", "DELETE"},
        "start_key": {"SELECT", "INSERT"},
        "stream": {"SELECT", "INSERT", "UPDATE"},
    },
    "noetl_publisher": {
        "event": {"SELECT"},
        "installation": {"SELECT"},
        "outbox": {"SELECT", "DELETE"},
        "outbox_lease": {"SELECT", "INSERT", "UPDATE"},
        "outbox_publisher": {"SELECT", "INSERT", "UPDATE", "DELETE"},
    },
    "noetl_projector": {
        "checkpoint": {"SELECT", "INSERT", "UPDATE", "DELETE"},
        "command": {"SELECT", "INSERT", "UPDATE"},
        "execution": {"SELECT", "INSERT", "UPDATE"},
        "installation": {"SELECT"},
        "projection": {"SELECT"},
        "projection_checkpoint": {"SELECT", "INSERT", "UPDATE"},
        "projection_snapshot": {"SELECT", "INSERT", "DELETE"},
        "projection_snapshot_part": {"SELECT", "INSERT", "DELETE"},
        **{table: {"SELECT", "INSERT", "UPDATE"} for table in ("stage", "frame", "loop", "business_object")},
    },
}


@pytest.fixture
async def admin(installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(installed_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def as_api(api_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(api_dsn)
    yield connection
    await connection.close()


@pytest.mark.parametrize("role", sorted(TABLES))
async def test_a_role_has_its_grants_and_no_others(admin: asyncpg.Connection, role: str) -> None:
    rows = await admin.fetch(
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants "
        "WHERE table_schema = 'noetl' AND grantee IN ($1, 'PUBLIC')",
        role,
    )
    grants: dict[str, set[str]] = {}
    for row in rows:
        grants.setdefault(row["table_name"], set()).add(row["privilege_type"])

    assert grants == TABLES[role]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE noetl.event SET event_type = 'x'",
        "DELETE FROM noetl.event",
        "TRUNCATE noetl.event",
        "DELETE FROM noetl.stream",
        "DELETE FROM noetl.outbox",
        "SELECT * FROM noetl.outbox",
        "UPDATE noetl.catalog SET content = 'x'",
        "DELETE FROM noetl.start_key",
        "UPDATE noetl.installation SET shard_count = 1",
        "SELECT * FROM noetl.execution",
        "CREATE TABLE noetl.mine (x int)",
        "DROP TABLE noetl.event",
        "ALTER TABLE noetl.event ADD COLUMN x int",
    ],
)
async def test_api_may_not(as_api: asyncpg.Connection, statement: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await as_api.execute(statement)


async def test_nobody_changes_an_event_through_a_partition_either(
    admin: asyncpg.Connection, as_api: asyncpg.Connection
) -> None:
    partition = await admin.fetchval("SELECT inhrelid::regclass::text FROM pg_inherits LIMIT 1")

    for statement in (f"UPDATE {partition} SET event_type = 'x'", f"DELETE FROM {partition}"):  # noqa: S608
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await as_api.execute(statement)


async def test_there_are_no_triggers(admin: asyncpg.Connection) -> None:
    count = await admin.fetchval(
        "SELECT count(*) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
        "JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = 'noetl' AND NOT tgisinternal"
    )

    assert count == 0
