"""Brings a lake up to the log: in this process, or with Spark where there is enough to do for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.lake.write_slice import InlineSlices
from noetl_adapters.spark.api_access import ApiAccess
from noetl_adapters.spark.jobs import SparkJobs, why_not_here
from noetl_adapters.spark.lake_job import LakeAccess, SparkSlices, WriteSlices
from noetl_core.ports.event_log import Scope

from noetl_cli.connection import Server, connected
from noetl_cli.lake.export import BATCH_EVENTS, Exported, LakeExport, Missing

Engine = Literal["auto", "spark", "inline"]

SPARK_FROM_EVENTS: Final = 1_000_000
"""For fewer new events a session's start and first jobs take longer than a second core saves (ADR 0047)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was asked for."""

    place: str
    scope: Scope | None = None
    engine: Engine = "auto"
    batch_events: int = BATCH_EVENTS
    jobs: int = 0
    """Tasks at once; 0 for one a processor."""
    master: str = ""


def bring_up(
    server: Server, asked: Export, jobs: SparkJobs, report: Callable[[Exported], None] = lambda done: None
) -> tuple[Exported, Engine]:
    """What was done, and how; nothing here runs in an event loop, since a session is started outside of one."""
    files = open_lake(asked.place, os.environ)
    export = LakeExport(files, ParquetEvents(), scope=asked.scope, batch_events=asked.batch_events, report=report)

    async def look() -> Missing:
        async with connected(server) as clients:
            return await export.look(clients.evidence)

    async def run_here() -> Exported:
        async with connected(server) as clients:
            return await export.run(missing, InlineSlices(clients.events, files, ParquetEvents()))

    missing = asyncio.run(look())
    if chosen(asked, missing.events) == "inline":
        return asyncio.run(run_here()), "inline"
    api = ApiAccess(address=server.address, token=server.token, tls=server.tls)
    task = WriteSlices(api, LakeAccess.of(asked.place, os.environ))
    with SparkSlices(jobs.session(), task) as writer:
        return asyncio.run(export.run(missing, writer)), "spark"


def chosen(asked: Export, events: int) -> Engine:
    """The engine for so many new events; what was named is used, but for nothing at all no session is started."""
    if asked.engine == "inline" or not events:
        return "inline"
    if asked.engine == "spark":
        return "spark"
    side_by_side = bool(asked.master) or (asked.jobs or os.cpu_count() or 1) > 1
    pays = events >= SPARK_FROM_EVENTS and side_by_side
    return "spark" if pays and why_not_here(os.environ) is None else "inline"
