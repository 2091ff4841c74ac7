"""An export of the log as Spark jobs: each slice is a task, written aside by the same code as in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import grpc
from noetl_contracts.clients import EventLogClient
from noetl_core.errors import NoetlError
from noetl_core.lake.slices import Slice, WrittenSlice
from noetl_core.ports.lake import LakeFiles

from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.lake.write_slice import write_slice
from noetl_adapters.spark.api_access import ApiAccess
from noetl_adapters.spark.jobs import told_plainly
from noetl_adapters.spark.payload_access import STORE_VARIABLES

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession

_READ_SECONDS: Final = 60.0
_MAX_AT_ONCE: Final = 2048


class ExportFailed(NoetlError):
    """A slice could not be written; what was committed before it counts, and the next run goes on from there."""

    code = "lake.export_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAccess:
    """Where a lake is and how it is reached; travels as `ApiAccess` does."""

    place: str
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, place: str, environment: Mapping[str, str]) -> LakeAccess:
        """As it is called here: a task may stand in another directory, and know of other buckets."""
        address = urlsplit(place)
        if address.scheme in ("", "file"):
            place = str(Path(address.path if address.scheme else place).absolute())
        known = ((name, environment[name]) for name in STORE_VARIABLES if name in environment)
        return cls(place=place, variables=tuple(known))

    def open(self) -> LakeFiles:
        """What the machine of a task knows by itself counts where nothing was said."""
        return open_lake(self.place, {**os.environ, **dict(self.variables)})


class WriteSlices:
    """What a task is given."""

    def __init__(self, api: ApiAccess, lake: LakeAccess) -> None:
        self._api = api
        self._lake = lake

    def __call__(self, slices: Iterable[Slice]) -> Iterator[WrittenSlice]:
        """In an executor's Python process; on its one connection, which later tasks find open."""
        key = (os.getpid(), self._api, self._lake)
        if key not in _OPENED:
            _OPENED[key] = _Opened(self._api, self._lake)
        for one in slices:
            yield _OPENED[key].write(one)


class SparkSlices:
    """Port `SliceWriter`: slices are jobs of one task, so that the first can be committed while others run."""

    def __init__(self, spark: SparkSession, task: Callable[[Iterable[Slice]], Iterator[WrittenSlice]]) -> None:
        self._context = spark.sparkContext
        self._task = task
        self._threads = ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="slice")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if error is not None:
            self._context.cancelAllJobs()
        self._threads.shutdown()

    @property
    def at_once(self) -> int:
        """Twice as many as can run now, so that no executor waits for the slice whose turn it is; a cluster grows."""
        return min(2 * self._context.defaultParallelism, _MAX_AT_ONCE)

    async def write(self, one: Slice) -> WrittenSlice:
        """On whichever executor is free; a task that is lost is tried again, and writes the same files."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, one)

    def _run(self, one: Slice) -> WrittenSlice:
        with told_plainly(ExportFailed):
            (written,) = self._context.parallelize([one], 1).mapPartitions(self._task).collect()
            return written


class _Opened:
    """Connections of one Python process, which lasts as long as the session: made after it was forked."""

    def __init__(self, api: ApiAccess, lake: LakeAccess) -> None:
        self._api = api
        self._files = lake.open()
        self._loop = asyncio.Runner()
        self._channel: grpc.aio.Channel | None = None

    def write(self, one: Slice) -> WrittenSlice:
        return self._loop.run(self._write(one))

    async def _write(self, one: Slice) -> WrittenSlice:
        if self._channel is None:
            self._channel = self._api.open()
        log = EventLogClient(self._channel, timeout=_READ_SECONDS)
        return await write_slice(log, self._files, ParquetEvents(), one)


_OPENED: Final[dict[tuple[int, ApiAccess, LakeAccess], _Opened]] = {}
