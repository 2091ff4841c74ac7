"""One call in the driver process: inputs become views, a query or user code runs, executors store what it gives."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noetl_core.canonical import JsonValue
from noetl_core.ports.spark import SparkCall
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, pmod, xxhash64

from noetl_adapters.spark.data_source import NoetlDataSource, read_reference, register
from noetl_adapters.spark.failures import SOURCE_NAME
from noetl_adapters.spark.references import MARK, chunks_option, written_schema

FORMAT = NoetlDataSource.name()


def run_call(spark: SparkSession, call: SparkCall, *, scratch: Path) -> JsonValue:
    """What the call gave: a result that refers to stored rows, or data that code has returned."""
    session = _own_session(spark)
    tables = {name: _table(session, call, table) for name, table in call.tables.items()}
    if call.sql is not None:
        for name, frame in tables.items():
            frame.createOrReplaceTempView(name)
        return _stored(session.sql(call.sql, args=dict(call.values) or None), call, scratch)
    given = _main_of(call.code or "")(session, **tables, **call.values)
    if isinstance(given, DataFrame):
        return _stored(given, call, scratch)
    return _as_json(given)


def _own_session(spark: SparkSession) -> SparkSession:
    """Views and settings of calls do not meet; formats are looked up in the session that is active in the thread."""
    session = spark.newSession()
    jvm = session.sparkContext._jvm
    if jvm is not None:
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    register(session)
    return session


def _table(session: SparkSession, call: SparkCall, table: Mapping[str, Any]) -> DataFrame:
    chunks = table[MARK]
    if not chunks:
        return session.createDataFrame([], _columns_of(table))
    reference = chunks_option(
        chunks, tenant_id=call.tenant_id, organization_id=call.organization_id, schema=table.get("schema")
    )
    frame = session.read.format(FORMAT).option("reference", reference).load()
    return _of_partition(frame, table.get("partition"))


def _of_partition(frame: DataFrame, partition: Mapping[str, Any] | None) -> DataFrame:
    """Of a reduce stage with several partitions: the rows whose columns lead to this one."""
    if partition is None:
        return frame
    columns = [frame[f"`{name}`"] for name in partition["by"]]
    return frame.where(pmod(xxhash64(*columns), lit(int(partition["count"]))) == int(partition["index"]))


def _columns_of(table: Mapping[str, Any]) -> str:
    """Of a table without rows: what is known of them; a name without a type is text."""
    names = [{"name": name, "type": "string"} for name in table.get("columns") or ()]
    return written_schema(table.get("schema")) or written_schema(names) or ""


def _main_of(code: str) -> Any:
    names: dict[str, Any] = {"__name__": "noetl_spark_code"}
    exec(compile(code, SOURCE_NAME, "exec"), names)  # noqa: S102 - it is what the user wants to be run
    main = names.get("main")
    if not callable(main):
        raise NameError("the code defines no function main(spark, **inputs)")
    return main


def _stored(frame: DataFrame, call: SparkCall, scratch: Path) -> JsonValue:
    """Tasks write the rows; what comes back to the driver are names of payloads."""
    if not frame.columns:  # a statement that gives no table
        frame.collect()
        return {"status": "success", "row_count": 0, "columns": [], "schema": [], "partition_count": 0, "rows": []}
    into = scratch / f"result-{uuid.uuid4().hex}"
    try:
        (
            frame.write.format(FORMAT)
            .option("tenant", call.tenant_id)
            .option("organization", call.organization_id)
            .option("into", str(into))
            .mode("append")
            .save()
        )
        result: JsonValue = read_reference(into)["result"]  # type: ignore[assignment]
        return result
    finally:
        into.unlink(missing_ok=True)


def _as_json(value: Any) -> JsonValue:
    try:
        plain: JsonValue = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as exc:
        raise TypeError(f"main returns neither a DataFrame nor data that JSON can carry: {exc}") from exc
    return plain
