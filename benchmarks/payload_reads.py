"""One payload of 64 MiB from where it may be: a worker's memory, its disk, the payload directory, an S3 server."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from noetl_adapters.payload.disk_tier import DiskTier
from noetl_adapters.payload.memory_tier import MemoryTier
from noetl_adapters.payload.open_store import open_payload_store
from noetl_adapters.payload.tiers import TieredPayloadStore
from noetl_core.ports.payloads import PayloadStore
from noetl_testkit.object_stores import s3_server

from benchmarks.figures import Figure, median
from benchmarks.stack import Stack

SIZE_BYTES = 64 * 1024 * 1024
_BUDGET_BYTES = 8 * SIZE_BYTES
_MOST_READS = 200
_GROUP = "Payloads: one of 64 MiB, read whole and verified"


class _Uncounted:
    def read(self, tier: str, outcome: str) -> None:
        """Figures are taken outside."""

    def holds(self, tier: str, size: int) -> None:
        """Figures are taken outside."""


async def measure_payloads(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Milliseconds by place, and what a copy nearby saves; the running stack has no part in it."""
    data = os.urandom(SIZE_BYTES)
    with tempfile.TemporaryDirectory(dir=stack.home.root) as directory, s3_server() as server:
        root = Path(directory)
        async with (
            open_payload_store((root / "payloads").as_uri(), {}) as local,
            open_payload_store(server.new_bucket(), server.environment) as remote,
        ):
            reports = _Uncounted()
            memory = MemoryTier(budget_bytes=_BUDGET_BYTES, reports=reports)
            disk = DiskTier(root / "cache", budget_bytes=_BUDGET_BYTES, reports=reports)
            places: dict[str, PayloadStore] = {
                "memory": TieredPayloadStore(remote, [memory], reports),
                "disk cache": TieredPayloadStore(remote, [disk], reports),
                "directory": local,
                "S3": remote,
            }
            took: dict[str, float] = {}
            figures: list[Figure] = []
            for name, store in places.items():
                say(f"payloads: {name} …")
                ref = await store.put(tenant_id="bench", organization_id="bench", data=data, media_type="a/b")
                samples = await _sampled(functools.partial(store.get, ref), seconds)
                took[name] = median(samples)
                figures.append(
                    Figure(group=_GROUP, name=name, value=took[name] * 1000, unit="ms", samples=len(samples))
                )
    return [
        *figures,
        Figure(
            group=_GROUP, name="S3 as a multiple of disk cache", value=took["S3"] / took["disk cache"], unit="times"
        ),
        Figure(group=_GROUP, name="S3 as a multiple of directory", value=took["S3"] / took["directory"], unit="times"),
    ]


async def _sampled(read: Callable[[], Awaitable[bytes]], seconds: float) -> list[float]:
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < 3 or (time.perf_counter() < until and len(samples) < _MOST_READS):
        begun = time.perf_counter()
        await read()
        samples.append(time.perf_counter() - begun)
    return samples
