"""What a worker shows of its tiers after real reads: of memory, shared memory, disk and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.payload.disk_tier import DiskTier
from noetl_adapters.payload.memory_tier import MemoryTier
from noetl_adapters.payload.open_shm import SharedMemorySettings, open_shared_memory
from noetl_adapters.payload.shm_tier import FULL, NO_ROOM, SHARED_MEMORY
from noetl_adapters.payload.tiers import PayloadTier, TieredPayloadStore
from noetl_core.payloads import PayloadRef
from noetl_core.ports.tables import MEDIA_TYPE
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.shared_memory import ample_room, table
from noetl_worker.telemetry import WorkerMetrics

TABLE = table(1)
BUDGET_BYTES = 6 * len(TABLE)


class Node:
    """A store, and workers of one machine that read from it, each with a memory and a disk of its own."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self._root = root
        self._stack = stack
        self._workers = 0
        self.store = DirectoryPayloadStore(root / "payloads")

    async def worker(self, *, memory_bytes: int = 1_000_000) -> tuple[TieredPayloadStore, MetricSet]:
        self._workers += 1
        metrics = MetricSet()
        reports = WorkerMetrics(metrics).payloads
        settings = SharedMemorySettings(
            budget_bytes=BUDGET_BYTES, lease_seconds=600, grace_seconds=60, directory=self._root
        )
        shared = await self._stack.enter_async_context(
            open_shared_memory(settings, "file:///store", {}, reports=reports, warn=pytest.fail, room=ample_room)
        )
        assert shared is not None
        tiers: list[PayloadTier] = [
            MemoryTier(budget_bytes=memory_bytes, reports=reports),
            shared,
            DiskTier(self._root / f"cache-{self._workers}", budget_bytes=1_000_000, reports=reports),
        ]
        return TieredPayloadStore(self.store, tiers, reports), metrics


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        yield Node(tmp_path, stack)


async def put(store: DirectoryPayloadStore | TieredPayloadStore, data: bytes) -> PayloadRef:
    return await store.put(tenant_id="acme", organization_id="ops", data=data, media_type=MEDIA_TYPE)


def resolved(metrics: MetricSet) -> dict[str, float]:
    """How many reads each tier has answered."""
    tiers = ("memory", "shared_memory", "disk", "store")
    counts = {tier: metrics.value("noetl_reference_resolve_seconds_count", tier=tier) for tier in tiers}
    return {tier: count for tier, count in counts.items() if count}


async def test_each_tier_shows_the_reads_that_it_answered_and_how_long_they_took(node: Node) -> None:
    ref = await put(node.store, TABLE)
    first, firsts = await node.worker()
    second, seconds = await node.worker()

    await first.get(ref)
    await first.get(ref)
    await second.get(ref)
    small = await put(first, b'{"n":1}')
    await first.get(small)

    assert resolved(firsts) == {"store": 1, "memory": 2}
    assert resolved(seconds) == {"shared_memory": 1}
    assert 0 < seconds.value("noetl_reference_resolve_seconds_sum", tier="shared_memory") < 60
    assert seconds.value("noetl_reference_resolve_seconds_bucket", tier="shared_memory", le="+Inf") == 1


async def test_what_only_the_disk_has_is_counted_there(node: Node) -> None:
    payloads, metrics = await node.worker(memory_bytes=1_000)
    ref = await put(payloads, b"too much for the memory, and no table" * 100)

    await payloads.get(ref)

    assert resolved(metrics) == {"disk": 1}


async def test_hits_misses_bytes_and_an_exhausted_budget_of_shared_memory_are_shown(node: Node) -> None:
    producer, shown = await node.worker()
    reader, read = await node.worker()
    alone = await put(node.store, table(99))
    for reason in (FULL, NO_ROOM):
        # There before the first of them: what begins at 1 is no increase to Prometheus.
        labels = {"tier": SHARED_MEMORY, "reason": reason}
        assert shown.registry.get_sample_value("noetl_worker_payload_copies_refused_total", labels) == 0

    refs = [await put(producer, table(seed)) for seed in range(8)]
    await reader.get(refs[0])
    await reader.get(alone)

    assert 0 < shown.value("noetl_worker_payload_tier_bytes", tier=SHARED_MEMORY) <= BUDGET_BYTES
    assert shown.value("noetl_worker_payload_copies_refused_total", tier=SHARED_MEMORY, reason=FULL) > 0
    assert read.value("noetl_worker_payload_reads_total", tier=SHARED_MEMORY, outcome="hit") == 1
    assert read.value("noetl_worker_payload_reads_total", tier=SHARED_MEMORY, outcome="miss") == 1
