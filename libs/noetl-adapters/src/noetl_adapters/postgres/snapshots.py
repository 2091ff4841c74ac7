"""Snapshots in PostgreSQL: what is said of one in a row, its body in parts beside it, both in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import asyncpg
from noetl_core.canonical import decode, encode
from noetl_core.ports.event_log import Scope
from noetl_core.replay.snapshots import Rules, Snapshot

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries


class PostgresSnapshots:
    """Port `SnapshotStore`, over tables that only the projector's role may write."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("snapshots.sql")

    async def find(self, scope: Scope | None, execution_id: int, *, at_or_below: int, rules: Rules) -> Snapshot | None:
        """The newest that was made by these rules."""
        async with translated(), self._pool.acquire() as connection:
            row = await connection.fetchrow(self._sql["find"], execution_id, at_or_below, *_rules(rules))
        if row is None or (scope is not None and (row[2], row[3]) != (scope.tenant_id, scope.organization_id)):
            return None
        return _snapshot(row)

    async def part(self, snapshot: Snapshot, number: int) -> bytes | None:
        """One part of its body."""
        async with translated(), self._pool.acquire() as connection:
            body: bytes | None = await connection.fetchval(
                self._sql["part"], snapshot.execution_id, snapshot.position, number, snapshot.checksum
            )
        return body

    async def positions(self, execution_id: int, *, rules: Rules) -> list[int]:
        """Of all snapshots that were made by these rules."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["positions"], execution_id, *_rules(rules))
        return [row[0] for row in rows]

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], *, keep: Collection[int]) -> bool:
        """Store it whole, and drop what it replaces."""
        place = (snapshot.execution_id, snapshot.position)
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                self._sql["drop_other_rules"], place[0], *_rules(snapshot.rules), [*keep, snapshot.position]
            )
            if not await connection.fetchval(self._sql["write"], *_columns(snapshot)):
                return False
            for number, body in enumerate(parts):
                await connection.execute(self._sql["write_part"], *place, number, body)
        return True

    async def drop(self, snapshot: Snapshot) -> None:
        """It turned out to be of no use."""
        async with translated(), self._pool.acquire() as connection:
            await connection.execute(self._sql["drop"], snapshot.execution_id, snapshot.position, snapshot.checksum)


def _rules(rules: Rules) -> tuple[Any, ...]:
    return rules.code_version, rules.upcasters, rules.row_format, rules.state_format


def _columns(one: Snapshot) -> tuple[Any, ...]:
    return (
        one.execution_id,
        one.position,
        one.tenant_id,
        one.organization_id,
        one.event_id,
        one.event_checksum,
        one.reached_at,
        *_rules(one.rules),
        one.payload_root,
        encode(dict(one.encryption)).decode(),
        encode(dict(one.surfaces)).decode(),
        encode(dict(one.row_counts)).decode(),
        one.parts,
        one.body_sha256,
        one.checksum,
    )


def _snapshot(row: asyncpg.Record) -> Snapshot:
    encryption, surfaces, row_counts = (_object(row[place]) for place in (12, 13, 14))
    return Snapshot(
        execution_id=row[0],
        position=row[1],
        tenant_id=row[2],
        organization_id=row[3],
        event_id=row[4],
        event_checksum=row[5],
        reached_at=row[6],
        rules=Rules(code_version=row[7], upcasters=row[8], row_format=row[9], state_format=row[10]),
        payload_root=row[11],
        encryption=encryption,
        surfaces=surfaces,
        row_counts=row_counts,
        parts=row[15],
        body_sha256=row[16],
        checksum=row[17],
    )


def _object(text: str) -> dict[str, Any]:
    value: Any = decode(text.encode())
    return value if isinstance(value, dict) else {}
