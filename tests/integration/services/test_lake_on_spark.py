"""An export as Spark jobs leaves the lake that one process leaves, whatever dies in between."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.lake.write_slice import InlineSlices
from noetl_adapters.spark.api_access import ApiAccess
from noetl_adapters.spark.jobs import SparkJobs, job_settings
from noetl_adapters.spark.lake_events import lake_events
from noetl_adapters.spark.lake_job import LakeAccess, SparkSlices, WriteSlices
from noetl_adapters.spark.verify_job import verify_lake
from noetl_cli.lake.check import check_lake
from noetl_cli.lake.export import Exported, LakeExport
from noetl_contracts.clients import EventLogClient, EvidenceClient
from noetl_core.errors import NotFound, Unavailable
from noetl_core.lake.manifest import EVENTS, MANIFESTS, PENDING
from noetl_core.lake.slices import Slice, WrittenSlice
from noetl_core.ports.lake import LakeFiles
from noetl_testkit.compliance.event_log import note, request, start
from noetl_testkit.object_stores import ObjectServer
from noetl_testkit.until import until
from pyspark import cloudpickle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG, SHORT = 700, 30
EVENTS_IN_ALL = LONG + 10 * SHORT
BATCH = 100

pickle_by_value: Any = cloudpickle.register_pickle_by_value
pickle_by_value(sys.modules[__name__])  # executors have NoETL, and no tests


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: it takes seconds to start."""
    with SparkJobs(job_settings(jobs=2, memory="512m")) as jobs:
        yield jobs.session()


class Exporter:
    """Exports of one api's log to one lake."""

    def __init__(
        self, api: Any, place: str, environment: Mapping[str, str] = os.environ, *, batch_events: int = BATCH
    ) -> None:
        self.access = ApiAccess(address=api.grpc_address, token="service")
        self.lake_access = LakeAccess.of(place, environment)
        self.lake: LakeFiles = open_lake(place, environment)
        self.export = LakeExport(self.lake, ParquetEvents(), scope=None, batch_events=batch_events)

    def task(self) -> WriteSlices:
        return WriteSlices(self.access, self.lake_access)

    async def on_spark(self, spark: SparkSession, task: WriteSlices | None = None) -> Exported:
        with SparkSlices(spark, task or self.task()) as writer:
            async with self.access.open() as channel:
                return await self.export.run(await self.export.look(EvidenceClient(channel)), writer)

    async def inline(self) -> Exported:
        async with self.access.open() as channel:
            missing = await self.export.look(EvidenceClient(channel))
            return await self.export.run(missing, InlineSlices(EventLogClient(channel), self.lake, ParquetEvents()))

    def files(self) -> dict[str, bytes]:
        return {path: self.lake.read(path) for path in self.lake.list(EVENTS)}

    def assert_whole(self) -> None:
        """Every event once, proved, and nothing beside it."""
        events = [event for data in self.files().values() for event in ParquetEvents().decode_events(data)]
        found = Counter((event.envelope().execution_id, event.stream_version) for event in events)
        assert (len(found), found.total()) == (EVENTS_IN_ALL, EVENTS_IN_ALL)
        report = check_lake(self.lake, ParquetEvents())
        assert (report.problems, report.events, report.executions) == ([], EVENTS_IN_ALL, 11)
        assert [*self.lake.list(PENDING), *self.lake.list_unfinished("")] == []


@pytest.fixture
async def log(api: Any) -> Any:
    """A long history, which several slices share, and ten short ones."""
    events = (await api.as_("service")).events
    for length in (LONG, *[SHORT] * 10):
        execution_id = await start(events)
        await events.append(request(execution_id, *(note(str(number)) for number in range(length - 1))))
    return api


class DiesOnce(WriteSlices):
    """The process of one task is killed when it has written everything, and half of something else."""

    def __init__(self, exporter: Exporter, directory: Path) -> None:
        super().__init__(exporter.access, exporter.lake_access)
        self._directory = directory

    def __call__(self, slices: Iterable[Slice]) -> Iterator[WrittenSlice]:
        for one in slices:
            written = list(super().__call__([one]))
            if one.batch == 3 and not (self._directory / "died").exists():
                (self._directory / "died").touch()
                half = self._directory / "lake" / PENDING / f"batch-{one.batch:012d}-0.parquet.tmp-0"
                half.write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            yield from written


class NeverThere(WriteSlices):
    """Every attempt at one slice fails, after the slices before it were written."""

    def __call__(self, slices: Iterable[Slice]) -> Iterator[WrittenSlice]:
        for one in slices:
            if one.batch == 4:
                raise Unavailable("api is away")
            yield from super().__call__([one])


async def test_spark_writes_what_one_process_writes_and_adds_what_has_happened_since(
    log: Any, spark: SparkSession, tmp_path: Path
) -> None:
    on_spark, inline = Exporter(log, str(tmp_path / "spark")), Exporter(log, str(tmp_path / "inline"))

    done, nothing = await on_spark.on_spark(spark), await on_spark.on_spark(spark)
    await inline.inline()

    assert (done.events, done.executions, done.batches, nothing.batches) == (EVENTS_IN_ALL, 11, 10, 0)
    on_spark.assert_whole()
    assert on_spark.files() == inline.files(), "to the byte"
    assert not any("service" in value for _, value in spark.sparkContext.getConf().getAll()), "which is the token"


async def test_a_task_that_dies_is_tried_again_and_counts_once(log: Any, spark: SparkSession, tmp_path: Path) -> None:
    exporter = Exporter(log, str(tmp_path / "lake"))

    done = await exporter.on_spark(spark, DiesOnce(exporter, tmp_path))

    assert (tmp_path / "died").exists()
    assert done.events == EVENTS_IN_ALL
    exporter.assert_whole()


async def test_a_slice_that_fails_for_good_is_told_plainly_and_the_next_run_goes_on(
    log: Any, spark: SparkSession, tmp_path: Path
) -> None:
    exporter = Exporter(log, str(tmp_path / "lake"))

    with pytest.raises(Unavailable, match="a task failed: api is away"):
        await exporter.on_spark(spark, NeverThere(exporter.access, exporter.lake_access))
    counted = len(exporter.lake.list(MANIFESTS))
    done = await exporter.inline()

    assert (counted, done.events) == (3, EVENTS_IN_ALL - 3 * BATCH)
    exporter.assert_whole()


async def test_a_killed_driver_is_followed_by_one_that_exports_every_event_once(
    log: Any, spark: SparkSession, tmp_path: Path
) -> None:
    exporter = Exporter(log, str(tmp_path / "lake"), batch_events=20)
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "noetl_cli", "lake", "export", str(tmp_path / "lake")),
        *("--engine", "spark", "--jobs", "2", "--memory", "512m", "--batch-events", "20"),
        env={
            **os.environ,
            "NOETL_API_ADDRESS": log.grpc_address,
            "NOETL_TOKEN": "service",
            "TMPDIR": str(tmp_path),  # whoever is killed removes nothing
        },
    )
    try:
        await until(lambda: len(exporter.lake.list(MANIFESTS)) >= 5, seconds=400)
    finally:
        with suppress(ProcessLookupError):
            killed.kill()
        await killed.wait()
    counted = len(exporter.lake.list(MANIFESTS))

    done = await exporter.on_spark(spark)

    assert counted >= 5  # Or all of them, where this process stood still meanwhile.
    assert done.events == EVENTS_IN_ALL - 20 * counted

    async def nothing_is_left() -> bool:
        """Tasks may outlive their driver for a moment; what they write, the next run removes."""
        await exporter.inline()
        return not exporter.lake.list(PENDING)

    await until(nothing_is_left)
    exporter.assert_whole()


async def test_tasks_write_to_a_bucket(log: Any, spark: SparkSession, s3_server: ObjectServer) -> None:
    """Whose keys only the driver was told."""
    exporter = Exporter(log, f"{s3_server.new_bucket()}/lake", s3_server.environment)

    done = await exporter.on_spark(spark)

    assert done.events == EVENTS_IN_ALL
    exporter.assert_whole()


async def test_a_lake_in_a_bucket_is_read_as_one_in_a_directory(
    log: Any, spark: SparkSession, s3_server: ObjectServer, tmp_path: Path
) -> None:
    """By tasks, whose keys only the driver was told."""
    here = Exporter(log, str(tmp_path / "lake"))
    there = Exporter(log, f"{s3_server.new_bucket()}/lake", s3_server.environment)
    for one in (here, there):
        await one.inline()

    read = [sorted(map(tuple, lake_events(spark, one.lake_access).collect())) for one in (here, there)]
    report = verify_lake(spark, None, lake_events(spark, there.lake_access), {}, lambda executions, events: None)

    assert len(read[0]) == EVENTS_IN_ALL
    assert read[0] == read[1]
    assert (report.executions, report.events, report.failed) == (11, EVENTS_IN_ALL, [])


@pytest.mark.parametrize("name", ["lake#1", "lake?1", "lake[1]"])
async def test_a_directory_is_read_whatever_its_name_means_in_an_address_or_a_pattern(
    log: Any, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    exporter = Exporter(log, str(tmp_path / name))
    await exporter.inline()

    assert lake_events(spark, exporter.lake_access).count() == EVENTS_IN_ALL


def test_a_lake_is_named_for_tasks_that_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    places = [LakeAccess.of(place, {}).place for place in ("lake", "file:lake", (tmp_path / "lake").as_uri())]

    assert places == [str(tmp_path / "lake")] * 3


def test_a_lake_that_is_not_there_is_told_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="lake"):
        lake_events(spark, LakeAccess.of(str(tmp_path / "nowhere"), {}))
