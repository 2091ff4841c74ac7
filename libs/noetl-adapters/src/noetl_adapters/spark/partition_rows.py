"""Payloads that hold what items put out, read as the rows of a reduce stage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from noetl_core.canonical import decode
from noetl_core.payloads import PayloadRef
from noetl_core.stages.partitions import CHUNKS, OUTCOMES_TYPE, RESULT_TYPE, parts_in

from noetl_adapters.spark.arrow_rows import common_schema, conform, read_table, table_of
from noetl_adapters.spark.payload_access import BlockingPayloads
from noetl_adapters.spark.references import TableReference


def is_partition(media_type: str) -> bool:
    """Whether a payload is to be read as what items put out."""
    return media_type.startswith((RESULT_TYPE, OUTCOMES_TYPE))


def read_partition(payloads: BlockingPayloads, ref: PayloadRef) -> pa.Table:
    """The rows in a payload, and in those that it refers to."""
    rows: list[Any] = []
    tables: list[pa.Table] = []
    for part in parts_in(decode(payloads.get(ref)), ref.media_type):
        if isinstance(part, list):
            rows += [row if isinstance(row, dict) else {"value": row} for row in part]
            continue
        nested = TableReference.of_chunks(part[CHUNKS], tenant_id=ref.tenant_id, organization_id=ref.organization_id)
        tables += [read_table(payloads.get(chunk), chunk.media_type) for chunk in nested.chunks]
    if rows or not tables:
        tables.append(table_of(rows))
    schema = common_schema(table.schema for table in tables)
    return pa.concat_tables([conform(table, schema) for table in tables])
