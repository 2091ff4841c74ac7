"""A PySpark program that reads a payload of NoETL, works on it, and stores what it gets.

    export NOETL_PAYLOAD_URL=file:///var/lib/noetl/payloads
    python examples/spark/payloads.py acme sales /tmp/by_city.json [noetl://tenant/…/payloads/sha256/…]

Without a reference it stores a few rows first, to have something to read.
"""

import sys
from pathlib import Path

from noetl_adapters.spark.data_source import read_reference, register
from pyspark.sql import DataFrame, SparkSession


def store(frame: DataFrame, tenant: str, organization: str, into: Path) -> str:
    """Have executors store the rows; the address of a result that refers to them."""
    writer = frame.write.format("noetl").option("tenant", tenant).option("organization", organization)
    writer.option("into", str(into)).mode("append").save()
    return str(read_reference(into)["reference"])


def count_by_city(spark: SparkSession, tenant: str, organization: str, into: Path, reference: str = "") -> DataFrame:
    """What was counted, read back from where it was stored."""
    register(spark)
    if not reference:
        rows = [("Oslo", 1), ("Rome", 2), ("Oslo", 3)]
        reference = store(spark.createDataFrame(rows, "city string, amount int"), tenant, organization, into)
    orders = spark.read.format("noetl").option("reference", reference).load()
    counted = store(orders.groupBy("city").count().orderBy("city"), tenant, organization, into)
    return spark.read.format("noetl").option("reference", counted).load()


if __name__ == "__main__":
    tenant, organization, into, *more = sys.argv[1:]
    session = SparkSession.builder.appName("payloads").getOrCreate()
    count_by_city(session, tenant, organization, Path(into), *more).show()
    session.stop()
