"""The one session of a driver process: how it is configured, and how it is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from noetl_core.ports.spark import SparkSettings

from noetl_adapters.spark.java import find_java, home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex{short}
# Failed tasks are told in the outcome of their call.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
# Pools come into being when they are named, as they should.
logger.pools.name = org.apache.spark.scheduler.FairSchedulableBuilder
logger.pools.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def master_of(settings: SparkSettings, *, processors: int) -> str:
    """Where tasks run; more threads than processors, so that tasks that last leave some to queries."""
    threads = max(processors, 2)
    return settings.master or f"local[{threads + threads // 2}]"


def properties_of(settings: SparkSettings, *, scratch: Path, processors: int) -> dict[str, str]:
    """What the session is configured with: small machines first, and nothing that is a secret."""
    master = master_of(settings, processors=processors)
    properties = {
        "spark.master": master,
        "spark.app.name": "noetl",
        "spark.driver.memory": settings.memory,
        "spark.executor.memory": settings.memory,
        "spark.driver.maxResultSize": "256m",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{scratch / 'log4j2.properties'}",
    }
    if settings.python_memory:
        properties["spark.executor.pyspark.memory"] = settings.python_memory
    if master.startswith("local"):
        properties["spark.sql.shuffle.partitions"] = str(2 * max(processors, 2))
    if is_on_loopback(master):
        properties["spark.driver.bindAddress"] = LOOPBACK
        properties["spark.driver.host"] = LOOPBACK
    return {**properties, **settings.properties}


def is_on_loopback(master: str) -> bool:
    """Whether nobody outside of this machine needs to reach the driver."""
    return master.startswith(("local", f"spark://{LOOPBACK}", "spark://localhost"))


def environment_of(values: Mapping[str, str], *, settings: SparkSettings, scratch: Path) -> dict[str, str]:
    """The environment of the JVM and, through it, of local Python tasks; raises `Unavailable` without Java."""
    environment = dict(values)
    environment["JAVA_HOME"] = str(home_for_spark(find_java(values), scratch))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_DIRS", str(scratch / "local"))
    if is_on_loopback(master_of(settings, processors=1)):
        environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return environment


def start_session(settings: SparkSettings, scratch: Path) -> SparkSession:
    """Start the JVM and the session; takes seconds, and wants to be called before any thread is started."""
    os.environ.update(environment_of(os.environ, settings=settings, scratch=scratch))
    for name in ("local", "warehouse"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    (scratch / "log4j2.properties").write_text(_LOG4J)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set, and only where Spark runs

    builder = SparkSession.builder
    for name, value in properties_of(settings, scratch=scratch, processors=os.cpu_count() or 2).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
