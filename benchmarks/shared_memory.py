"""Shared memory: what it costs to attach a table there, and how often a consumer on the producer's node finds one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx
from noetl_adapters.arrow.ipc import open_table
from noetl_adapters.payload.open_shm import SharedMemorySettings, open_shared_memory
from noetl_adapters.payload.shm_tier import SHARED_MEMORY, SharedMemoryTier
from noetl_adapters.payload.tiers import HIT, TieredPayloadStore
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, EventLogClient, ExecutionClient, PayloadClient
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.tables import MEDIA_TYPE
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.drafts import ORGANIZATION, TENANT
from benchmarks.figures import Figure, Goal, median
from benchmarks.stack import Stack

_GOAL_PERCENT = 60.0
_EXECUTIONS = 20
_TIMEOUT_SECONDS = 60.0
_SCOPE = Scope(tenant_id=TENANT, organization_id=ORGANIZATION)
_METRIC = "noetl_api_payload_reads_total"
_TABLE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: a_table, path: benchmarks/a_table}
workflow:
- step: make
  tool:
    kind: python
    input: {seed: "{{ execution_id }}"}
    code: 'result = [{"n": n, "text": f"{seed} {n}"} for n in range(10000)]'
"""


class Uncounted:
    """Figures are taken outside."""

    def read(self, tier: str, outcome: str) -> None: ...

    def resolved(self, tier: str, seconds: float) -> None: ...

    def refused(self, tier: str, reason: str) -> None: ...

    def holds(self, tier: str, size: int) -> None: ...


async def attach_seconds(
    store: PayloadStore, data: bytes, *, seconds: float, most: int
) -> tuple[list[float], list[float]] | None:
    """Attaching and opening a table for the first time in a process, and again; None if there is no room for it."""
    settings = SharedMemorySettings(budget_bytes=8 * len(data), lease_seconds=600.0, grace_seconds=60.0)
    async with AsyncExitStack() as stack:

        async def user() -> SharedMemoryTier | None:
            opened = open_shared_memory(settings, "bench", {}, reports=Uncounted(), warn=lambda reason: None)
            return await stack.enter_async_context(opened)

        producer = await user()
        if producer is None:
            return None
        near = TieredPayloadStore(store, [producer], Uncounted())
        ref = await near.put(tenant_id="bench", organization_id="bench", data=data, media_type=MEDIA_TYPE)
        if ref.hint is None:
            return None
        first: list[float] = []
        again: list[float] = []
        until = time.perf_counter() + seconds
        while len(again) < 3 or (time.perf_counter() < until and len(again) < most):
            consumer = await user()
            if consumer is None:
                return None
            first.append(await _attach(TieredPayloadStore(store, [consumer], Uncounted()), ref))
            again.append(await _attach(TieredPayloadStore(store, [consumer], Uncounted()), ref))
            await consumer.close()
        return first, again


async def _attach(store: PayloadStore, ref: PayloadRef) -> float:
    begun = time.perf_counter()
    if not open_table(await store.attach(ref)).num_rows:
        raise RuntimeError("the table has no rows")
    return time.perf_counter() - begun


async def measure_hit_ratio(stack: Stack, *, say: Callable[[str], None]) -> list[Figure]:
    """Tables that the worker of the stack makes, read through its api, which is another process of the same node."""
    before = await _reads(stack)
    async with open_channel(stack.addresses.api, token=stack.addresses.service_token) as channel:
        path = (await CatalogClient(channel).register(_SCOPE, _TABLE)).entry.path
        executions, log, payloads = ExecutionClient(channel), EventLogClient(channel), PayloadClient(channel)
        took = []
        for _ in range(_EXECUTIONS):
            started = await executions.execute(_SCOPE, path=path)
            async for _seen in log.watch(_SCOPE, started.execution_id, timeout=_TIMEOUT_SECONDS):
                pass
            trace = await payloads.trace(_SCOPE, started.execution_id, "make")
            begun = time.perf_counter()
            fetched = await payloads.fetch(_SCOPE, trace.results[0].ref_id)
            async for _chunk in fetched.chunks:
                pass
            took.append(time.perf_counter() - begun)
    after = await _reads(stack)
    counted = {outcome: count - before.get(outcome, 0.0) for outcome, count in after.items()}
    say(f"shared memory, asked by api for {_EXECUTIONS} tables of the worker: {counted}")
    group = "Payloads: tables of a worker, read by another process of its node"
    return [
        Figure(
            group=group,
            name="found in shared memory",
            value=100.0 * counted.get(HIT, 0.0) / max(sum(counted.values()), 1.0),
            unit="%",
            goal=Goal(bound=_GOAL_PERCENT, at_least=True),
            samples=_EXECUTIONS,
        ),
        Figure(group=group, name="fetch through api", value=median(took) * 1000, unit="ms", samples=_EXECUTIONS),
    ]


async def _reads(stack: Stack) -> dict[str, float]:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{_ports(stack)['api.ops']}/metrics")
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == _METRIC and sample.labels["tier"] == SHARED_MEMORY
    }


def _ports(stack: Stack) -> dict[str, int]:
    ports: dict[str, int] = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    return ports
