"""Word count by the spark tool beside plain PySpark, and the tool on a cluster of two workers."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.spark.driver_process import SparkDriver
from noetl_core.canonical import JsonValue
from noetl_core.ports.spark import SparkProgress, SparkSettings, SparkWork
from noetl_servicekit.chunk_rows import LoadRows
from noetl_testkit.spark_cluster import standalone_cluster
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.spark import SparkTool
from noetl_worker.tools.spark_inputs import SparkInputs

from benchmarks.figures import Figure, Goal, median
from benchmarks.stack import Stack

SIZE_VARIABLE = "NOETL_BENCH_SPARK_MB"
_FILES = 8
_ROUNDS = 3
_WORDS = 50_000
_GROUP = "Spark: word count over generated text"
_COUNT = """
    words = spark.read.text(folder).selectExpr("explode(split(value, ' ')) AS word")
    counted = words.groupBy("word").count()
"""
TOOL = f"def main(spark, folder):{_COUNT}    return counted\n"
PLAIN = f"""
import time
def main(spark, folder, into):
    begun = time.monotonic()
{_COUNT.strip(chr(10))}
    counted.write.mode("overwrite").parquet(into)
    return {{"seconds": time.monotonic() - begun, "rows": spark.read.parquet(into).count()}}
"""
WHERE = """
import os, time
def main(spark):
    def place(_):
        time.sleep(0.5)
        return os.getppid()
    return len(set(spark.sparkContext.range(8, numSlices=8).map(place).collect()))
"""
"""Python tasks of one executor have one parent."""


class Silent:
    """Reports to nobody."""

    def session(self, state: str) -> None: ...

    def began(self) -> None: ...

    def ended(self, outcome: str) -> None: ...

    def progress(self, call: SparkWork, progress: SparkProgress) -> None: ...

    def said(self, line: str) -> None: ...


class Session:
    """A tool with a session of its own, called as the worker calls it."""

    def __init__(self, driver: SparkDriver, store: DirectoryPayloadStore) -> None:
        tables = ArrowTables()
        self.driver = driver
        self._rows = LoadRows(store, tables)
        self._tool = SparkTool(driver, SparkInputs(store, tables), self._rows, default_timeout_seconds=3600.0)

    async def run(self, config: dict[str, JsonValue], **inputs: JsonValue) -> Any:
        call = ToolCall(
            tenant_id="bench",
            organization_id="bench",
            execution_id=1,
            step="count",
            kind="spark",
            config=config,
            input=inputs,
        )
        outcome = await self._tool.run(call)
        assert outcome.error is None, outcome.error
        return outcome.data

    async def sorted_rows(self, data: JsonValue) -> list[tuple[Any, ...]]:
        loaded: Any = await self._rows(data, tenant_id="bench", organization_id="bench")
        return sorted(tuple(row.values()) for row in loaded["rows"])


async def measure_spark(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Each query three times after one that warms up, turn by turn; `seconds` is of no use to jobs."""
    megabytes = int(os.environ.get(SIZE_VARIABLE, "256"))
    with tempfile.TemporaryDirectory(dir=stack.home.root) as directory:
        root = Path(directory)
        say(f"spark: {megabytes} MB of text …")
        folder = await asyncio.to_thread(write_text, root / "text", megabytes)
        async with session(root, SparkSettings(memory="2g")) as local:
            figures, rows = await _beside_plain(local, folder, str(root / "plain"), say)
        figures += await _on_cluster(root, folder, rows, say)
    return [Figure(group=_GROUP, name="text", value=float(megabytes), unit="MB"), *figures]


@asynccontextmanager
async def session(root: Path, settings: SparkSettings) -> AsyncIterator[Session]:
    """Started, and stopped afterwards."""
    store = DirectoryPayloadStore(root / "payloads")
    environment = {**os.environ, "NOETL_PAYLOAD_URL": (root / "payloads").as_uri()}
    async with SparkDriver(settings, environment=environment, reports=Silent()) as driver:
        await driver.warm()
        yield Session(driver, store)


async def _beside_plain(
    local: Session, folder: str, into: str, say: Callable[[str], None]
) -> tuple[list[Figure], list[tuple[Any, ...]]]:
    tool, plain = [], []
    rows: list[tuple[Any, ...]] = []
    for turn in range(_ROUNDS + 1):
        say(f"spark: word count, {'to warm up' if not turn else f'{turn} of {_ROUNDS}'} …")
        told = await local.run({"code": PLAIN}, folder=folder, into=into)
        begun = time.monotonic()
        data = await local.run({"code": TOOL}, folder=folder)
        took = time.monotonic() - begun
        assert data["row_count"] == told["rows"]
        if turn:
            tool.append(took)
            plain.append(told["seconds"])
        else:
            rows = await local.sorted_rows(data)
    figures = [
        Figure(group=_GROUP, name="the spark tool", value=median(tool), unit="s", samples=len(tool)),
        Figure(group=_GROUP, name="plain PySpark, to Parquet", value=median(plain), unit="s", samples=len(plain)),
        Figure(
            group=_GROUP,
            name="tool as a multiple of plain",
            value=median(tool) / median(plain),
            unit="times",
            goal=Goal(bound=1.15, at_least=False),
        ),
    ]
    return figures, rows


async def _on_cluster(
    root: Path, folder: str, expected: list[tuple[Any, ...]], say: Callable[[str], None]
) -> list[Figure]:
    """The same call with another master: the same rows, made by both workers."""
    say("spark: a master and two workers …")
    with standalone_cluster(workers=2, cores=1, memory="1g") as master:
        async with session(root, SparkSettings(master=master, memory="1g")) as cluster:
            executors = await cluster.run({"code": WHERE})
            begun = time.monotonic()
            data = await cluster.run({"code": TOOL}, folder=folder)
            took = time.monotonic() - begun
            assert await cluster.sorted_rows(data) == expected, "another result on the cluster"
    return [
        Figure(group=_GROUP, name="workers of a standalone cluster that ran tasks", value=float(executors), unit=""),
        Figure(group=_GROUP, name="the spark tool on that cluster, the same result", value=took, unit="s"),
    ]


def write_text(folder: Path, megabytes: int) -> str:
    """Words by their rank, the same in every run."""
    folder.mkdir()
    chance = random.Random(7)  # noqa: S311 - the same text in every run
    words = [f"{chance.randrange(36**5):x}" for _ in range(_WORDS)]
    block = "\n".join(
        " ".join(words[int(_WORDS * chance.random() ** 3)] for _ in range(12)) for _ in range(20_000)
    ).encode()
    for number in range(_FILES):
        with (folder / f"{number}.txt").open("wb") as file:
            while file.tell() < megabytes * 1_000_000 / _FILES:
                file.write(block)
                file.write(b"\n")
    return str(folder)
