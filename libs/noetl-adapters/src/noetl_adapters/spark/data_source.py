"""`spark.read.format("noetl")` and `df.write.format("noetl")`: payloads as tables, one partition a payload.

Any PySpark program may use it that reaches the payload store: `register(spark)`, with the store in its environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from noetl_core.canonical import JsonObject, encode
from noetl_core.collection.documents import json_media_type
from noetl_core.errors import InvalidInput
from noetl_core.payloads import PayloadRef
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from noetl_adapters.spark.arrow_rows import common_schema, conform, read_schema, read_table, write_stream
from noetl_adapters.spark.partition_rows import is_partition, read_partition
from noetl_adapters.spark.payload_access import BlockingPayloads, StoreAccess
from noetl_adapters.spark.references import MARK, TableReference, resolve

MAX_PAYLOAD_BYTES: Final = 32 * 1024 * 1024
"""A partition with more is stored as several payloads, so that a task holds no more than this."""
BATCH_ROWS: Final = 10_000

Entry = list[str | int]
"""A chunk as marks have it: sha256, bytes, rows, media type."""


def register(spark: SparkSession) -> None:
    """Make the format known to a session; again is harmless."""
    try:
        spark.dataSource.register(NoetlDataSource)
    except AnalysisException as exc:
        if exc.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class NoetlDataSource(DataSource):
    """Options: `reference` to read; `tenant`, `organization` and `into`, a file for the reference, to write."""

    @classmethod
    def name(cls) -> str:
        return "noetl"

    def schema(self) -> StructType | str:
        """The columns of all payloads together."""
        access, table = self._table()
        if table.schema is not None:
            return table.schema
        payloads = access.open()
        schemas = (_schema_of(payloads, ref) for ref in table.chunks)
        return from_arrow_schema(common_schema(schemas), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        access, table = self._table()
        return PayloadReader(access=access, chunks=table.chunks, schema=schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Nothing is ever overwritten: other rows are another payload."""
        return PayloadWriter(
            access=StoreAccess.from_environment(os.environ),
            tenant_id=self._option("tenant"),
            organization_id=self._option("organization"),
            into=Path(self._option("into")),
            schema=schema,
        )

    def _table(self) -> tuple[StoreAccess, TableReference]:
        access = StoreAccess.from_environment(os.environ)
        return access, resolve(self._option("reference"), access.open())

    def _option(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise InvalidInput(f"the format noetl needs the option {name!r}")
        return value


def _schema_of(payloads: BlockingPayloads, ref: PayloadRef) -> pa.Schema:
    if is_partition(ref.media_type):
        return read_partition(payloads, ref).schema
    is_arrow = ref.media_type == TABLE_MEDIA_TYPE
    return read_schema(payloads.head(ref) if is_arrow else payloads.get(ref), ref.media_type)


class PayloadReader(DataSourceReader):
    """Executors read payloads by themselves, one a task."""

    def __init__(self, *, access: StoreAccess, chunks: Sequence[PayloadRef], schema: StructType) -> None:
        self._access = access
        self._chunks = tuple(chunks)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(ref) for ref in self._chunks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None:  # how Spark asks for a table without partitions
            return
        ref: PayloadRef = partition.value
        payloads = self._access.open()
        if is_partition(ref.media_type):
            table = read_partition(payloads, ref)
        else:
            table = read_table(payloads.get(ref), ref.media_type)
        yield from conform(table, to_arrow_schema(self._schema, timezone="UTC")).to_batches(max_chunksize=BATCH_ROWS)


@dataclass
class Written(WriterCommitMessage):
    """What one task has stored."""

    chunks: list[Entry]


class PayloadWriter(DataSourceArrowWriter):
    """Tasks store their rows and tell where they are; whoever commits stores a result that refers to them."""

    def __init__(
        self, *, access: StoreAccess, tenant_id: str, organization_id: str, into: Path, schema: StructType
    ) -> None:
        self._access = access
        self._tenant_id = tenant_id
        self._organization_id = organization_id
        self._into = into
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Bytes first; a task that runs again stores the same bytes, or others that nobody comes to name."""
        chunks: list[Entry] = []
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in iterator:
            if not batch.num_rows:
                continue
            held.append(batch)
            size += batch.nbytes
            if size >= MAX_PAYLOAD_BYTES:
                chunks.append(self._store(held))
                held, size = [], 0
        if held:
            chunks.append(self._store(held))
        return Written(chunks=chunks)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The chunks of all tasks in the order of partitions are the rows of the result."""
        tasks = [message.chunks for message in messages if isinstance(message, Written)]
        chunks = [chunk for task in tasks for chunk in task]
        if not chunks:  # the columns are known even where there are no rows
            chunks = [self._store([])]
        result = result_of(chunks, self._schema, partition_count=sum(1 for task in tasks if task))
        data = encode(result)
        ref = self._access.open().put(
            tenant_id=self._tenant_id,
            organization_id=self._organization_id,
            data=data,
            media_type=json_media_type(data),
        )
        self._into.write_text(json.dumps({"reference": ref.uri, "result": result}))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was stored is named by nobody, and is collected in time."""

    def _store(self, batches: Sequence[pa.RecordBatch]) -> Entry:
        schema = batches[0].schema if batches else to_arrow_schema(self._schema, timezone="UTC")
        ref = self._access.open().put(
            tenant_id=self._tenant_id,
            organization_id=self._organization_id,
            data=write_stream(batches, schema),
            media_type=TABLE_MEDIA_TYPE,
        )
        return [ref.sha256, ref.bytes, sum(batch.num_rows for batch in batches), ref.media_type]


def result_of(chunks: Sequence[Entry], schema: StructType, *, partition_count: int) -> JsonObject:
    """What the playbook's `spark` tool gives, and what the format writes: rows by reference, and what they are."""
    return {
        "status": "success",
        "row_count": sum(int(chunk[2]) for chunk in chunks),
        "columns": list(schema.names),
        "schema": [{"name": field.name, "type": field.dataType.simpleString()} for field in schema.fields],
        "partition_count": partition_count,
        "rows": {MARK: [list(chunk) for chunk in chunks]},
    }


def read_reference(into: Path) -> Mapping[str, object]:
    """What a write has left in its file: `reference`, the address of the result, and `result` itself."""
    left: Mapping[str, object] = json.loads(into.read_text())
    return left
