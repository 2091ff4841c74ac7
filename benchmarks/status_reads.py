"""A client process that asks how executions are, one after another, while others are at work."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from noetl_contracts.channel import open_channel
from noetl_contracts.clients import ExecutionClient, ProjectionClient
from noetl_core.ports.event_log import Scope
from noetl_servicekit.event_loop import run_on_fast_loop

from benchmarks.bare_reads import bare_chain, bare_client
from benchmarks.drafts import ORGANIZATION, TENANT

_PAUSE_SECONDS = 0.003
_WARM_UP = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob:
    """Whom to ask about what, and for how long."""

    api: str
    projector: str
    token: str = field(repr=False)
    owner_dsn: str = field(repr=False)
    execution_ids: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes:
    """How long each answer took, in seconds."""

    through_api: tuple[float, ...]
    of_projector: tuple[float, ...]
    bare: tuple[float, ...]


def read_status(job: ReadJob) -> ReadTimes:
    """Runs in a process of its own."""
    with bare_chain(job.owner_dsn) as port:
        return run_on_fast_loop(_read(job, port))


async def _read(job: ReadJob, bare_port: int) -> ReadTimes:
    scope = Scope(tenant_id=TENANT, organization_id=ORGANIZATION)
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    choose = random.Random(1)  # noqa: S311 - which execution is of no account
    async with (
        open_channel(job.api, token=job.token) as api,
        open_channel(job.projector, token=job.token) as projector,
        bare_client(bare_port) as bare,
    ):
        executions, projections = ExecutionClient(api), ProjectionClient(projector)
        ends_at, number = time.perf_counter() + job.seconds, 0
        while time.perf_counter() < ends_at:
            execution_id, place = choose.choice(job.execution_ids), number % len(times)
            asked_at = time.perf_counter()
            if place == 0:
                await executions.get(scope, execution_id)
            elif place == 1:
                await projections.get_execution(scope, execution_id)
            else:
                await bare.ask(execution_id)
            if number >= _WARM_UP:
                times[place].append(time.perf_counter() - asked_at)
            number += 1
            await asyncio.sleep(_PAUSE_SECONDS)
    return ReadTimes(through_api=tuple(times[0]), of_projector=tuple(times[1]), bare=tuple(times[2]))
