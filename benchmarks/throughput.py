"""Appended events per second through gRPC, as a share of plain INSERTs of the same rows into the same table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count

import asyncpg
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient
from noetl_core.ids import Snowflake

from benchmarks.append_load import AppendJob, append
from benchmarks.clients import Clients, Timing
from benchmarks.drafts import start_requests
from benchmarks.figures import Figure, Goal, median, processor_figures
from benchmarks.insert_load import InsertJob, insert
from benchmarks.stack import Stack

ROUNDS = 3
GOAL = Goal(bound=0.5, at_least=True)
"""Of the write path alone, in bulk: plain INSERTs give nobody anything to do, while what is appended is published,
folded and decided on by four services that would have the same processors here, and others elsewhere (ADR 0070)."""
_CLIENTS = 2
_WARM_UP_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How events arrive."""

    name: str
    executions: int
    drafts_per_request: int
    in_flight: int
    """Requests under way in each client."""
    connections: int
    """That each client uses to insert the same rows."""
    first_guess: int
    """Events a second, to size the warm-up."""


LOADS = (
    Load(
        name="one hot execution, 100 a request, answered with places",
        executions=1,
        drafts_per_request=100,
        in_flight=8,
        connections=8,
        first_guess=4000,
    ),
    Load(
        name="200 executions, 100 a request, answered with places",
        executions=200,
        drafts_per_request=100,
        in_flight=8,
        connections=8,
        first_guess=4000,
    ),
    Load(
        name="one hot execution, 1 a request",
        executions=1,
        drafts_per_request=1,
        in_flight=48,
        connections=16,
        first_guess=800,
    ),
    Load(
        name="200 executions, 1 a request",
        executions=200,
        drafts_per_request=1,
        in_flight=48,
        connections=16,
        first_guess=800,
    ),
)


async def measure_throughput(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """With the whole stack at work, and once more with the write path alone on the machine."""
    figures: list[Figure] = []
    with Clients(_CLIENTS) as clients:
        rounds = await _Rounds.begin(stack, clients, seconds=seconds, say=say)
        for load in LOADS:
            figures += await rounds.figures(load, alone=False)
        for load in LOADS[:2]:
            figures += await rounds.figures(load, alone=True)
    return figures


class _Rounds:
    """Pairs of the two measurements, one right after the other, on executions of their own."""

    def __init__(
        self, stack: Stack, clients: Clients, *, node: int, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._stack = stack
        self._clients = clients
        self._node = node
        self._ids = Snowflake(node)
        self._seconds = seconds
        self._say = say
        self._numbers: Iterator[int] = count()

    @classmethod
    async def begin(cls, stack: Stack, clients: Clients, *, seconds: float, say: Callable[[str], None]) -> _Rounds:
        """Draw a node number, so that ids made here are nobody else's."""
        connection = await asyncpg.connect(stack.addresses.owner_dsn)
        try:
            node = await connection.fetchval("SELECT nextval('noetl.snowflake_node')")
        finally:
            await connection.close()
        return cls(stack, clients, node=node, seconds=seconds, say=say)

    async def figures(self, load: Load, *, alone: bool) -> list[Figure]:
        """Warm up, then median rates and the median of the ratios of each round."""
        appended: list[Timing] = []
        inserted: list[Timing] = []
        used: dict[str, float] = {}
        with self._stack.only_api() if alone else nullcontext():
            await self._settle(alone)
            executions = await self._start(load.executions)
            warm = await self._append(load, executions, events=load.first_guess * _WARM_UP_SECONDS)
            await self._insert(load, executions)
            for _ in range(ROUNDS):
                await self._settle(alone)
                executions = await self._start(load.executions)
                before = self._stack.processor_seconds()
                warm = await self._append(load, executions, events=warm.rate * self._seconds)
                await self._settle(alone)
                appended.append(warm)
                for part, seconds in self._stack.processor_seconds_since(before).items():
                    used[part] = used.get(part, 0.0) + seconds
                inserted.append(await self._insert(load, executions))
        group = f"Append through gRPC: {load.name}" + (", other services paused" if alone else "")
        rates = [timing.rate for timing in appended], [timing.rate for timing in inserted]
        ratios = [ours / plain for ours, plain in zip(*rates, strict=True)]
        self._say(f"{group}: {median(ratios):.2f} of {median(rates[1]):,.0f} events/s")
        return [
            Figure(group=group, name="appended", value=median(rates[0]), unit="events/s", samples=ROUNDS),
            Figure(group=group, name="inserted plainly", value=median(rates[1]), unit="events/s", samples=ROUNDS),
            Figure(
                group=group,
                name="share",
                value=median(ratios),
                unit="",
                goal=GOAL if alone else None,
                samples=ROUNDS,
            ),
            *processor_figures(group, "event", used, sum(timing.events for timing in appended)),
        ]

    async def _settle(self, alone: bool) -> None:
        """What was appended before must not disturb; alone, nobody is there who would work on it."""
        if not alone:
            await self._stack.settle()

    async def _start(self, executions: int) -> tuple[int, ...]:
        ids = self._new_ids(executions)
        addresses = self._stack.addresses
        async with open_channel(addresses.api, token=addresses.service_token) as channel:
            log = EventLogClient(channel)
            for request in start_requests(ids):
                await log.append(request)
        return ids

    def _new_ids(self, number: int) -> tuple[int, ...]:
        return tuple(self._ids.next(time.time_ns() // 1_000_000) for _ in range(number))

    async def _append(self, load: Load, executions: tuple[int, ...], *, events: float) -> Timing:
        requests = max(round(events / load.drafts_per_request / _CLIENTS), load.in_flight)
        jobs = [
            AppendJob(
                address=self._stack.addresses.api,
                token=self._stack.addresses.service_token,
                execution_ids=executions[part::_CLIENTS] or executions,
                key_prefix=str(next(self._numbers)),
                requests=requests,
                drafts_per_request=load.drafts_per_request,
                in_flight=load.in_flight,
            )
            for part in range(_CLIENTS)
        ]
        return await self._clients.run(append, jobs)

    async def _insert(self, load: Load, executions: tuple[int, ...]) -> Timing:
        new_ids = dict(zip(executions, self._new_ids(len(executions)), strict=True))
        shared = len(executions) < _CLIENTS
        jobs = [
            InsertJob(
                dsn=self._stack.addresses.owner_dsn,
                new_ids=new_ids if shared else {old: new_ids[old] for old in executions[part::_CLIENTS]},
                part=part if shared else 0,
                parts=_CLIENTS if shared else 1,
                node=(self._node + 512 + part) % 1024,
                rows_per_insert=load.drafts_per_request,
                connections=load.connections,
            )
            for part in range(_CLIENTS)
        ]
        return await self._clients.run(insert, jobs)
