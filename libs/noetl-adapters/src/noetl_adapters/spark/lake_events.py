"""Events of a lake as rows of Spark, which reads a directory by itself, and has tasks read anything else.

What Spark reads by itself never passes through Python before it is sorted; what tasks read does, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from noetl_core.errors import Corrupt, NotFound
from noetl_core.lake.manifest import EVENTS

from noetl_adapters.spark.lake_job import LakeAccess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMES: Final = (
    "execution_id",
    "body",
    "stream_version",
    "aggregate_version",
    "ingest_time",
    "prev_checksum",
    "checksum",
)
_SCHEMA: Final = (
    "execution_id long, body binary, stream_version long, aggregate_version long, ingest_micros long, "
    "prev_checksum string, checksum string"
)
_PATTERN: Final = frozenset("{}[]*?\\")
"""A directory with one of these in its name is a pattern to Spark, which finds others or none."""


def lake_events(spark: SparkSession, lake: LakeAccess) -> DataFrame:
    """All that count, in no order: execution, body, both versions, microseconds since 1970, both checksums."""
    files = lake.open().list(EVENTS)
    if not files:
        raise NotFound("lake", lake.place)
    if lake.place.startswith("/") and not _PATTERN.intersection(lake.place):
        return directory_events(spark, [f"file://{lake.place.rstrip('/')}/{path}" for path in files])
    read = spark.sparkContext.parallelize(files, len(files)).mapPartitions(_ReadFiles(lake))
    return spark.createDataFrame(read, _SCHEMA)


def directory_events(spark: SparkSession, files: Iterable[str]) -> DataFrame:
    """Those of some files that every executor sees."""
    # Times of rows come without a zone.
    columns = ["unix_micros(ingest_time) AS ingest_micros" if name == "ingest_time" else name for name in _NAMES]
    return spark.read.parquet(*files).selectExpr(*columns)


class _ReadFiles:
    """What a task is given: its part of the names."""

    def __init__(self, lake: LakeAccess) -> None:
        self._lake = lake

    def __call__(self, files: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        lake = self._lake.open()
        for path in files:
            yield from _rows(path, lake.read(path))


def _rows(path: str, data: bytes) -> Iterator[tuple[Any, ...]]:
    try:
        table = pq.read_table(pa.BufferReader(data), columns=list(_NAMES))
        columns = [table[name].cast(pa.int64()) if name == "ingest_time" else table[name] for name in _NAMES]
    except (pa.ArrowException, OSError) as exc:
        raise Corrupt(f"{path} of the lake cannot be read: {exc}") from exc
    return zip(*(column.to_pylist() for column in columns), strict=True)
