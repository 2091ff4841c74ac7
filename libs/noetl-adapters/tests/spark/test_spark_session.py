"""What a session is configured with, before any JVM is started."""

from pathlib import Path

from noetl_adapters.spark.scheduler_pools import SchedulerPools
from noetl_adapters.spark.session import environment_of, is_on_loopback, properties_of
from noetl_core.ports.spark import SparkSettings

SCRATCH = Path("/scratch")


def test_a_small_machine_has_small_defaults() -> None:
    properties = properties_of(SparkSettings(), scratch=SCRATCH, processors=1)

    assert properties["spark.master"] == "local[3]"
    assert properties["spark.sql.shuffle.partitions"] == "4"
    assert properties["spark.ui.enabled"] == "false"
    assert properties["spark.scheduler.mode"] == "FAIR"
    assert properties["spark.driver.host"] == "127.0.0.1"
    assert properties["spark.driver.memory"] == "1g"


def test_a_cluster_is_a_matter_of_the_master_alone() -> None:
    properties = properties_of(SparkSettings(master="spark://head:7077"), scratch=SCRATCH, processors=8)

    assert properties["spark.master"] == "spark://head:7077"
    assert "spark.driver.host" not in properties
    assert "spark.sql.shuffle.partitions" not in properties


def test_what_the_operator_says_wins() -> None:
    settings = SparkSettings(properties={"spark.ui.enabled": "true", "spark.executor.cores": "2"})

    properties = properties_of(settings, scratch=SCRATCH, processors=2)

    assert (properties["spark.ui.enabled"], properties["spark.executor.cores"]) == ("true", "2")


def test_memory_is_limited_where_the_operator_says_so() -> None:
    limited = properties_of(SparkSettings(memory="2g", python_memory="3g"), scratch=SCRATCH, processors=2)
    unlimited = properties_of(SparkSettings(), scratch=SCRATCH, processors=2)

    heap = limited["spark.driver.memory"], limited["spark.executor.memory"]
    assert (*heap, limited["spark.executor.pyspark.memory"]) == ("2g", "2g", "3g")
    assert "spark.executor.pyspark.memory" not in unlimited


def test_an_execution_has_a_pool_while_it_runs_something_and_names_are_used_again() -> None:
    pools = SchedulerPools()
    with pools.pool("1") as first, pools.pool("1") as shared, pools.pool("2") as other:
        assert (first, shared, other) == ("execution-0", "execution-0", "execution-1")
    with pools.pool("3") as later:
        assert later == "execution-0"


def test_no_secret_of_the_store_is_in_the_configuration() -> None:
    values = " ".join(properties_of(SparkSettings(), scratch=SCRATCH, processors=2).values())

    assert "AWS" not in values
    assert "NOETL_PAYLOAD" not in values


def test_only_what_is_local_is_bound_to_the_loopback() -> None:
    assert is_on_loopback("local[4]")
    assert is_on_loopback("spark://127.0.0.1:7077")
    assert not is_on_loopback("spark://10.0.0.1:7077")
    assert not is_on_loopback("k8s://https://api")


def test_python_of_tasks_is_the_operators_if_he_names_one(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"'\necho jdk.incubator.vector@21\n")
    java.chmod(0o755)
    values = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": "", "PYSPARK_PYTHON": "/opt/python"}

    environment = environment_of(values, settings=SparkSettings(), scratch=tmp_path)

    assert environment["PYSPARK_PYTHON"] == "/opt/python"
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert environment["JAVA_HOME"] == str(tmp_path / "jdk")
