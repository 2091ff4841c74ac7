"""One table of 64 MiB from where it may be: the memory of a process or of its node, a disk, an S3 server."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
from noetl_adapters.arrow.ipc import open_table
from noetl_adapters.payload.disk_tier import DiskTier
from noetl_adapters.payload.memory_tier import MemoryTier
from noetl_adapters.payload.open_store import open_payload_store
from noetl_adapters.payload.tiers import TieredPayloadStore
from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.tables import MEDIA_TYPE
from noetl_testkit.object_stores import s3_server

from benchmarks.figures import Figure, median
from benchmarks.shared_memory import Uncounted, attach_seconds, measure_hit_ratio
from benchmarks.stack import Stack

SIZE_BYTES = 64 * 1024 * 1024
_BUDGET_BYTES = 8 * SIZE_BYTES
_MOST_READS = 200
_BATCH_ROWS = 128 * 1024
_GROUP = "Payloads: a table of 64 MiB, read whole, verified and opened"
_SHARED, _SHARED_AGAIN = "shared memory, first attach", "shared memory, attach again"


async def measure_payloads(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Milliseconds by place, and what a copy nearby saves; then what the running stack has of it."""
    data = _table()
    with tempfile.TemporaryDirectory(dir=stack.home.root) as directory, s3_server() as server:
        root = Path(directory)
        async with (
            open_payload_store((root / "payloads").as_uri(), {}) as local,
            open_payload_store(server.new_bucket(), server.environment) as remote,
        ):
            reports = Uncounted()
            memory = MemoryTier(budget_bytes=_BUDGET_BYTES, reports=reports)
            disk = DiskTier(root / "cache", budget_bytes=_BUDGET_BYTES, reports=reports)
            places: dict[str, PayloadStore] = {
                "memory": TieredPayloadStore(remote, [memory], reports),
                "disk cache": TieredPayloadStore(remote, [disk], reports),
                "directory": local,
                "S3": remote,
            }
            samples: dict[str, list[float]] = {}
            for name, store in places.items():
                say(f"payloads: {name} …")
                ref = await store.put(tenant_id="bench", organization_id="bench", data=data, media_type=MEDIA_TYPE)
                samples[name] = await _sampled(functools.partial(store.attach, ref), seconds)
            attached = await attach_seconds(remote, data, seconds=seconds, most=_MOST_READS)
            if attached is None:
                say("payloads: there is no room in shared memory")
            else:
                samples[_SHARED], samples[_SHARED_AGAIN] = attached
    took = {name: median(seconds) for name, seconds in samples.items()}
    figures = [
        Figure(group=_GROUP, name=name, value=value * 1000, unit="ms", samples=len(samples[name]))
        for name, value in took.items()
    ]
    for far, near in (
        ("S3", "disk cache"),
        ("S3", "directory"),
        ("S3", _SHARED),
        ("disk cache", _SHARED),
        ("S3", _SHARED_AGAIN),
        ("disk cache", _SHARED_AGAIN),
    ):
        if near in took:
            name = f"{far} as a multiple of {near}"
            figures.append(Figure(group=_GROUP, name=name, value=took[far] / took[near], unit="times"))
    return [*figures, *await measure_hit_ratio(stack, say=say)]


def _table() -> bytes:
    """Numbers that no compression makes fewer."""
    numbers = pa.Array.from_buffers(pa.int64(), SIZE_BYTES // 8, [None, pa.py_buffer(os.urandom(SIZE_BYTES))])
    sink = pa.BufferOutputStream()
    table = pa.table({"number": numbers})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_BATCH_ROWS)
    data: bytes = sink.getvalue().to_pybytes()
    return data


async def _sampled(read: Callable[[], Awaitable[memoryview]], seconds: float) -> list[float]:
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < 3 or (time.perf_counter() < until and len(samples) < _MOST_READS):
        begun = time.perf_counter()
        open_table(await read())
        samples.append(time.perf_counter() - begun)
    return samples
