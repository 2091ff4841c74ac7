"""Bulk replay: a lake of histories, checked and folded by one process, and by Spark on one core, two, and so on.

`python -m benchmarks.bulk_replay DIRECTORY CORES` is one Spark session, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.spark.session import start_session
from noetl_adapters.verify.shares import ShareReport
from noetl_core.evidence.verdict import HistoryCheck
from noetl_core.ports.spark import SparkSettings
from noetl_core.ports.streams import StreamHead
from noetl_testkit.histories import EXECUTION, NOON, History, choices, two_steps
from noetl_testkit.telling_histories import telling_history

from benchmarks.figures import Figure, median
from benchmarks.stack import Stack

SIZE_VARIABLE = "NOETL_BENCH_REPLAY_EVENTS"
ROUNDS = 3
ROOT = Path(__file__).resolve().parents[1]
_FILES = 16
_GROUP = "Bulk replay: chains checked, all surfaces folded and summed"


async def measure_bulk_replay(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """The same files and the same fold each time; `seconds` is of no use to jobs."""
    wanted = int(os.environ.get(SIZE_VARIABLE, "40000"))
    with tempfile.TemporaryDirectory(dir=stack.home.root) as directory:
        say(f"replay: {wanted} events of generated histories …")
        events, executions = await asyncio.to_thread(write_lake, Path(directory), wanted)
        say("replay: one process …")
        alone = await asyncio.to_thread(lambda: [fold_here(Path(directory), events) for _ in range(ROUNDS)])
        figures = [
            Figure(group=_GROUP, name="events", value=float(events), unit=""),
            Figure(group=_GROUP, name="executions", value=float(executions), unit=""),
            Figure(group=_GROUP, name="one process", value=median(alone), unit="events/s", samples=ROUNDS),
        ]
        first = 0.0
        for cores in core_counts(os.cpu_count() or 1):
            say(f"replay: Spark on {cores} …")
            rates = await _on_spark(Path(directory), cores)
            first = first or median(rates)
            name, rate = f"Spark, local[{cores}]", median(rates)
            figures += [
                Figure(group=_GROUP, name=name, value=rate, unit="events/s", samples=len(rates)),
                Figure(group=_GROUP, name=f"{name} beside one process", value=rate / median(alone), unit="times"),
                Figure(group=_GROUP, name=f"{name} beside local[1]", value=rate / first, unit="times"),
            ]
    return figures


def core_counts(cores: int) -> list[int]:
    """1, 2, 4 … and all of them."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return [*counts, cores] if cores > 1 else counts


def write_lake(directory: Path, wanted: int) -> tuple[int, int]:
    """Histories of many lengths, in files as an export writes them; heads beside them."""
    histories: list[History] = []
    events = 0
    while events < wanted:
        number = len(histories)
        chosen = EXECUTION + number
        if number % 4:
            history = two_steps(History(chosen, started_at=NOON + timedelta(seconds=number)))
        else:
            history = telling_history(choices(number), execution_id=chosen)
        histories.append(history)
        events += len(history.stored)
    for number in range(_FILES):
        some = [event for history in histories[number::_FILES] for event in history.stored]
        (directory / f"{number}.parquet").write_bytes(ParquetEvents().encode_events(some))
    heads = {str(one.execution_id): (len(one.stored), one.stored[-1].checksum) for one in histories}
    (directory / "heads.json").write_text(json.dumps(heads), encoding="utf-8")
    return events, len(histories)


def fold_here(directory: Path, expected: int) -> float:
    """Events a second, from files to checksums."""
    begun = time.perf_counter()
    report = ShareReport()
    for file in sorted(directory.glob("*.parquet")):
        checks: dict[int, HistoryCheck] = {}
        data = file.read_bytes()
        ids = pq.read_table(pa.BufferReader(data), columns=["execution_id"])["execution_id"].to_pylist()
        for execution_id, event in zip(ids, ParquetEvents().decode_events(data), strict=True):
            if execution_id not in checks:
                checks[execution_id] = HistoryCheck(execution_id)
            checks[execution_id].take([event])
        for check in checks.values():
            report.add(check.alone())
    seconds = time.perf_counter() - begun
    _check(report, expected)
    return expected / seconds


def fold_on_spark(directory: Path, cores: int) -> list[float]:
    """Events a second of warm jobs."""
    from noetl_adapters.spark.lake_events import directory_events  # noqa: PLC0415 - after the session's environment
    from noetl_adapters.spark.verify_job import verify_lake  # noqa: PLC0415 - after the session's environment

    ends: dict[str, tuple[int, str]] = json.loads((directory / "heads.json").read_text(encoding="utf-8"))
    heads = {
        int(one): StreamHead(
            execution_id=int(one),
            tenant_id="default",
            organization_id="default",
            version=version,
            checksum=checksum,
            terminal=True,
            updated_at=NOON,
        )
        for one, (version, checksum) in ends.items()
    }
    expected = sum(version for version, _ in ends.values())
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(SparkSettings(master=f"local[{cores}]"), Path(scratch))
        try:
            files = [file.as_uri() for file in sorted(directory.glob("*.parquet"))]
            rates: list[float] = []
            for _ in range(ROUNDS + 1):
                begun = time.perf_counter()
                events = directory_events(spark, files)
                report = verify_lake(spark, None, events, heads, lambda executions, events: None)
                rates.append(expected / (time.perf_counter() - begun))
                _check(report, expected)
        finally:
            spark.stop()
    return rates[1:]


async def _on_spark(directory: Path, cores: int) -> list[float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.bulk_replay",
        str(directory),
        str(cores),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "the Spark session failed; what it said stands above"
    rates: list[float] = json.loads(out.splitlines()[-1])
    return rates


def _check(report: ShareReport, expected: int) -> None:
    assert report.events == expected, (report.events, expected)
    assert not report.failed, report.failed[0]


def main(arguments: Sequence[str]) -> None:
    """One session, for whoever compares several."""
    print(json.dumps(fold_on_spark(Path(arguments[0]), int(arguments[1]))))


if __name__ == "__main__":
    main(sys.argv[1:])
