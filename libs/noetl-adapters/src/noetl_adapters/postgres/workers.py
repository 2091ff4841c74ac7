"""The list of workers in PostgreSQL: rows that expire by its clock."""

from __future__ import annotations

import json
from collections.abc import Sequence

import asyncpg
from noetl_core.errors import InvalidInput
from noetl_core.ports.workers import MAX_WORKERS, PresentWorker, WaitingRetry, WorkerReport
from noetl_core.timestamps import format_time, parse_time

from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import translated
from noetl_adapters.postgres.queries import load_queries

_MAX_LEASE_SECONDS = 3600.0


class PostgresWorkerPresence:
    """Port `WorkerPresence`; each call is one statement."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sql = load_queries("workers.sql")

    async def report(self, report: WorkerReport, *, lease_seconds: float) -> None:
        """Until its lease ends."""
        if not report.worker_id or not 0 < lease_seconds <= _MAX_LEASE_SECONDS:
            raise InvalidInput(f"a worker has a name, and is there for at most {_MAX_LEASE_SECONDS:g} seconds")
        capacity = {
            "pool": report.pool,
            "locator": report.locator,
            "slots": report.slots,
            "busy": report.busy,
            "kinds": [*report.kinds],
            "version": report.version,
            "retries": [
                [one.command_id, one.task, one.attempt, one.attempts, format_time(one.next_at)]
                for one in report.retries
            ],
        }
        async with translated(), self._pool.acquire() as connection:
            await connection.execute(self._sql["report"], report.worker_id, lease_seconds, json.dumps(capacity))

    async def leave(self, worker_id: str) -> None:
        """At once."""
        async with translated(), self._pool.acquire() as connection:
            await connection.execute(self._sql["leave"], worker_id)

    async def list(self, *, pool: str = "") -> Sequence[PresentWorker]:
        """By name."""
        async with translated(), self._pool.acquire() as connection:
            rows = await connection.fetch(self._sql["list"], pool, MAX_WORKERS)
        return [_worker(row) for row in rows]


def _worker(row: asyncpg.Record) -> PresentWorker:
    said = json.loads(row["capacity"])
    report = WorkerReport(
        worker_id=row["instance"],
        pool=said.get("pool", ""),
        locator=said.get("locator", ""),
        slots=said.get("slots", 0),
        busy=said.get("busy", 0),
        kinds=tuple(said.get("kinds", ())),
        version=said.get("version", ""),
        retries=tuple(
            WaitingRetry(command_id=command, task=task, attempt=attempt, attempts=attempts, next_at=parse_time(next_at))
            for command, task, attempt, attempts, next_at in said.get("retries", ())
        ),
    )
    return PresentWorker(report=report, started_at=row["started_at"], heard_at=row["heard_at"])
