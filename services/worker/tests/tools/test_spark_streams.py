"""Streams of the spark tool: rows of payloads become chunks, and never are more than two of these in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence

import pyarrow as pa
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue, encode
from noetl_core.ports.spark import SparkEnd, SparkWork
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.stored_values import MEDIA_TYPE
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.spark import SparkTool
from noetl_worker.tools.spark_inputs import SparkInputs

ROWS = 200_000
TABLES = ArrowTables()


class Counting:
    """Takes chunks, holds the last one as a stream does, and remembers how many rows each had."""

    def __init__(self, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self.sizes: list[int] = []
        self.ends: list[JsonValue] = []
        self._held: list[JsonValue] = []

    async def put(self, rows: list[JsonValue]) -> None:
        self.ends = [*self.ends[:1], rows[-1]] if self.ends else [rows[0], rows[-1]]
        self.sizes.append(len(rows))
        self._held = rows


class Stored:
    """A session whose calls have stored these payloads."""

    def __init__(self) -> None:
        self.store = InMemoryPayloadStore()
        self._entries: list[JsonValue] = []

    async def add(self, data: bytes, *, row_count: int, media_type: str = TABLE_MEDIA_TYPE) -> None:
        ref = await self.store.put(tenant_id="acme", organization_id="ops", data=data, media_type=media_type)
        self._entries.append([ref.sha256, ref.bytes, row_count, media_type])

    async def warm(self) -> None: ...

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None: ...

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        return SparkEnd(data={"rows": {"_chunks": self._entries}, "status": "success"})

    async def stream(self, sink: Counting) -> Outcome:
        tool = SparkTool(self, SparkInputs(self.store, TABLES), LoadRows(self.store, TABLES))
        return await tool.run(
            ToolCall(
                tenant_id="acme",
                organization_id="ops",
                execution_id=1,
                step="s",
                kind="spark",
                config={"sql": "SELECT 1"},
                chunks=sink,
            )
        )


def in_one_batch(numbers: Sequence[int]) -> bytes:
    """A payload as an executor may write it: its batches are as large as Spark makes them."""
    columns = {"n": pa.array(numbers), "text": pa.array([f"{'x' * 100}{number}" for number in numbers])}
    sink, batch = pa.BufferOutputStream(), pa.record_batch(columns)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


async def test_a_large_payload_takes_the_memory_of_two_chunks() -> None:
    small, large = Stored(), Stored()
    await small.add(in_one_batch([1]), row_count=1)
    await small.stream(Counting(1))  # what is loaded once is not counted
    await large.add(in_one_batch(range(ROWS)), row_count=ROWS)
    sink = Counting(1000)
    gc.collect()
    tracemalloc.start()
    try:
        outcome = await large.stream(sink)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert outcome.error is None
    assert sink.sizes == [1000] * (ROWS // 1000)
    first, last = sink.ends
    assert (first, last) == (
        {"n": 0, "text": f"{'x' * 100}0"},
        {"n": ROWS - 1, "text": f"{'x' * 100}{ROWS - 1}"},
    )
    assert peak < 1_000_000  # all rows would be more than 60 MB, two chunks are 0.8


async def test_chunks_reach_over_payloads_and_batches_and_payloads_without_rows_add_none() -> None:
    stored, sink = Stored(), Counting(4)
    await stored.add(in_one_batch(range(3)), row_count=3)
    await stored.add(TABLES.encode([]).data, row_count=0)
    await stored.add(in_one_batch(range(3, 10)), row_count=7)
    await stored.add(encode([{"n": 10}, {"n": 11}]), row_count=2, media_type=MEDIA_TYPE)

    await stored.stream(sink)

    assert sink.sizes == [4, 4, 4]
    assert sink.ends[-1] == {"n": 11}


async def test_bytes_that_are_cut_short_fail_the_call_after_the_chunks_before() -> None:
    stored, sink = Stored(), Counting(2)
    await stored.add(in_one_batch(range(4)), row_count=4)
    await stored.add(in_one_batch(range(4, 8))[:-200], row_count=4)

    outcome = await stored.stream(sink)

    assert outcome.error is not None
    assert outcome.error.code == "REFERENCE_NOT_AVAILABLE"
    assert sink.sizes == [2, 2]
