"""Brings a database to this release's schema; safe from any number of replicas at once."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import asyncpg
from noetl_core.canonical import sha256_hex
from noetl_core.errors import Rejected

from noetl_adapters.postgres.pool import translated

_LOCK_KEY = 0x6E6F65746C  # "noetl"; transaction-scoped, so it cannot outlive a crashed replica


class SchemaMismatch(Rejected):
    """The database and this release do not fit together."""

    code = "database.schema_mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema; its text never changes once it has been applied anywhere."""

    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Digest of the text, to notice an edited migration."""
        return sha256_hex(self.sql.encode())


def shipped_migrations() -> tuple[Migration, ...]:
    """The migrations of this release, in order."""
    folder = files(__package__) / "sql" / "migrations"
    return tuple(
        Migration(name=entry.name.removesuffix(".sql"), sql=entry.read_text(encoding="utf-8"))
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".sql")
    )


async def migrate(dsn: str, *, shard_count: int) -> tuple[str, ...]:
    """Apply what is missing, as the owner of the schema; returns the names applied by this call."""
    async with translated():
        connection = await asyncpg.connect(dsn, server_settings={"application_name": "noetl-migrate"})
        try:
            async with connection.transaction():
                # Waits for another replica's migration, which then leaves nothing to do.
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK_KEY)
                return await _apply(connection, shard_count)
        finally:
            await connection.close()


async def _apply(connection: asyncpg.Connection, shard_count: int) -> tuple[str, ...]:
    await connection.execute("CREATE SCHEMA IF NOT EXISTS noetl")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS noetl.schema_migration ("
        "name text PRIMARY KEY, sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    rows = await connection.fetch("SELECT name, sha256 FROM noetl.schema_migration")
    recorded = {row["name"]: row["sha256"] for row in rows}
    shipped = shipped_migrations()
    unknown = recorded.keys() - {migration.name for migration in shipped}
    if unknown:
        raise SchemaMismatch(f"the database has newer migrations than this release: {sorted(unknown)}")
    applied: list[str] = []
    for migration in shipped:
        if migration.name in recorded:
            if recorded[migration.name] != migration.sha256:
                raise SchemaMismatch(f"migration {migration.name} was edited after it was applied")
            continue
        await connection.execute(migration.sql)
        await connection.execute(
            "INSERT INTO noetl.schema_migration (name, sha256) VALUES ($1, $2)",
            migration.name,
            migration.sha256,
        )
        applied.append(migration.name)
    await _fix_installation(connection, shard_count)
    return tuple(applied)


async def _fix_installation(connection: asyncpg.Connection, shard_count: int) -> None:
    await connection.execute(
        "INSERT INTO noetl.installation (shard_count) VALUES ($1) ON CONFLICT DO NOTHING", shard_count
    )
    fixed = await connection.fetchval("SELECT shard_count FROM noetl.installation")
    if fixed != shard_count:
        raise SchemaMismatch(
            f"this installation has {fixed} shards, NOETL_SHARD_COUNT says {shard_count}; it cannot be changed"
        )
    for role, shards in (("planner", shard_count), ("projector", shard_count), ("reaper", 1)):
        await connection.execute(
            "INSERT INTO noetl.execution_shard (role, shard_id) "
            "SELECT $1, shard FROM generate_series(0, $2 - 1) AS shard ON CONFLICT DO NOTHING",
            role,
            shards,
        )
    await connection.execute(
        "INSERT INTO noetl.outbox_lease (shard) "
        "SELECT shard FROM generate_series(0, $1 - 1) AS shard ON CONFLICT DO NOTHING",
        shard_count,
    )
