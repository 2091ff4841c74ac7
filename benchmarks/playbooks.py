"""A two-step playbook as its client sees it: from `execute` to the terminal event, alone and with many others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, EventLogClient, ExecutionClient
from noetl_core.envelope import StoredEvent
from noetl_core.ports.event_log import Scope

from benchmarks.drafts import ORGANIZATION, TENANT
from benchmarks.figures import Figure, latency_figures, median, processor_figures
from benchmarks.stack import Stack

CONCURRENT = 50
GOAL_MS = 30.0
_SCOPE = Scope(tenant_id=TENANT, organization_id=ORGANIZATION)
_WARM_UP = 15
_TIMEOUT_SECONDS = 60.0
_COMMITS = 4
_PARTS = 8
_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "playbooks" / "two_steps.yaml"
_NOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: two_noops, path: benchmarks/two_noops}
workflow:
- step: first
  tool: {kind: noop, result: {n: 1}}
  next: {arcs: [{step: second}]}
- step: second
  tool: {kind: noop, result: {n: "{{ first.n + 1 }}"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution, from the call to the terminal event."""

    seconds: float
    execute_seconds: float
    commit_seconds: tuple[float, ...]
    """When each transaction took place, counted from the first, by the database's clock."""


class _Runner:
    def __init__(self, executions: ExecutionClient, log: EventLogClient, *, path: str) -> None:
        self._executions = executions
        self._log = log
        self._path = path

    async def __call__(self) -> Run:
        begun = time.perf_counter()
        started = await self._executions.execute(_SCOPE, path=self._path)
        execute_seconds = time.perf_counter() - begun
        events: list[StoredEvent] = []
        async for seen in self._log.watch(_SCOPE, started.execution_id, timeout=_TIMEOUT_SECONDS):
            events += seen.events
        seconds = time.perf_counter() - begun
        last = events[-1].envelope().event_type
        if last != "playbook.completed":
            raise RuntimeError(f"execution {started.execution_id} ended with {last}")
        times = sorted({event.ingest_time for event in events})
        return Run(
            seconds=seconds,
            execute_seconds=execute_seconds,
            commit_seconds=tuple((moment - times[0]).total_seconds() for moment in times),
        )


async def measure_latency(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """One execution after another on an idle stack."""
    figures: list[Figure] = []
    for name, content in (("python", _EXAMPLE.read_text(encoding="utf-8")), ("noop", _NOOP)):
        async with open_channel(stack.addresses.api, token=stack.addresses.service_token) as channel:
            run = await _runner(channel, content)
            for _ in range(_WARM_UP):
                await run()
            await stack.settle()
            runs: list[Run] = []
            before = stack.processor_seconds()
            ends_at = time.perf_counter() + seconds
            while time.perf_counter() < ends_at:
                runs.append(await run())
            used = stack.processor_seconds_since(before)
        say(f"{len(runs)} executions of two {name} steps")
        group = f"Two {name} steps, one execution at a time, warm"
        figures += _latency_figures(group, runs)
        figures += processor_figures(group, "execution", used, len(runs))
    return figures


async def measure_concurrency(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Always the same number of executions under way."""
    await stack.settle()
    async with open_channel(stack.addresses.api, token=stack.addresses.service_token) as channel:
        run = await _runner(channel, _EXAMPLE.read_text(encoding="utf-8"))
        await asyncio.gather(*(run() for _ in range(CONCURRENT)))
        begun = time.perf_counter()
        runs: list[Run] = []

        async def client() -> None:
            while time.perf_counter() < begun + seconds:
                runs.append(await run())

        await asyncio.gather(*(client() for _ in range(CONCURRENT)))
        elapsed = time.perf_counter() - begun
    say(f"{len(runs)} executions, {CONCURRENT} at once")
    group = f"Two python steps, {CONCURRENT} executions at once"
    rate = Figure(group=group, name="executions", value=len(runs) / elapsed, unit="/s", samples=len(runs))
    return [rate, *latency_figures(group, "execute to terminal", [one.seconds for one in runs])]


async def _runner(channel: grpc.aio.Channel, content: str) -> _Runner:
    registered = await CatalogClient(channel).register(_SCOPE, content)
    return _Runner(ExecutionClient(channel), EventLogClient(channel), path=registered.entry.path)


def _latency_figures(group: str, runs: list[Run]) -> list[Figure]:
    figures = latency_figures(group, "execute to terminal", [run.seconds for run in runs], goal_ms=GOAL_MS)
    figures += _of_parts(group, [run.seconds for run in runs])
    figures += latency_figures(group, "execute call", [run.execute_seconds for run in runs])
    usual = [run.commit_seconds for run in runs if len(run.commit_seconds) == _COMMITS]
    names = ("planned and claimed", "first step done", "second step done")
    for place, name in enumerate(names, start=1):
        gaps = [commits[place] - commits[place - 1] for commits in usual]
        if gaps:
            value = median(gaps) * 1000
            label = f"commit to commit, until {name}: p50"
            figures.append(Figure(group=group, name=label, value=value, unit="ms", samples=len(gaps)))
    return figures


def _of_parts(group: str, seconds: list[float]) -> list[Figure]:
    """How far the machine itself moved meanwhile: the same work, a moment later."""
    size = len(seconds) // _PARTS
    if not size:
        return []
    each = sorted(median(seconds[part * size : (part + 1) * size]) * 1000 for part in range(_PARTS))
    return [
        Figure(group=group, name=f"  p50 of the {name} of {_PARTS} parts", value=value, unit="ms", samples=size)
        for name, value in (("fastest", each[0]), ("slowest", each[-1]))
    ]
