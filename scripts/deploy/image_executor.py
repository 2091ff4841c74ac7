"""The worker's image as an executor of Spark: started as Spark on Kubernetes starts pods, it must do a driver's work.

A pod of an executor is told everything by its first argument and by variables. The driver that it reports to is a
container of the same image, which has no other executor.
"""

import json
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from noetl_testkit.eventually import eventually

from scripts.deploy.containers import Image, Wanted, log_of, running
from scripts.deploy.rendered import Volume

_MASTER, _DRIVER, _EXECUTOR = "127.77.0.21", "127.77.0.22", "127.77.0.23"
_HOSTS: Final = f"127.0.0.1 localhost\n{_MASTER} spark-master\n{_DRIVER} spark-driver\n{_EXECUTOR} spark-executor\n"
_MASTER_PORT, _DRIVER_PORT, _BLOCK_PORT = 7077, 7078, 7079
_SECONDS: Final = 240.0
_PROGRAM: Final = """
import json, operator, platform, sys
from pyspark.sql import SparkSession

session = SparkSession.builder.config(map=json.loads(sys.argv[1])).getOrCreate()
options = session.sparkContext.getConf().get("spark.executor.extraJavaOptions", "")
print("application", session.sparkContext.applicationId, options, flush=True)
numbers = session.sparkContext.parallelize(range(1000), 2)
sums = numbers.map(lambda number: (platform.node(), number * number)).reduceByKey(operator.add).collect()
print("answer", json.dumps(dict(sums)), flush=True)
session.stop()
"""
_ANSWER: Final = sum(number * number for number in range(1000))


def problems_of_executor(image: Image, directory: Path) -> list[str]:
    """Nothing, if the executor computed the answer."""
    hosts = directory / "executor.hosts"
    hosts.write_text(_HOSTS, encoding="utf-8")

    def container(
        name: str, address: str, *, command: tuple[str, ...] = (), variables: Mapping[str, str] | None = None
    ) -> Wanted:
        volumes = []
        for path in ("/tmp", "/opt/spark/conf"):  # noqa: S108 - Spark mounts its settings at the second
            place = directory / name / Path(path).name
            place.mkdir(parents=True)
            volumes.append(Volume(path=path, place=place, secret=False))
        chosen = {"command": command} if command else {"arguments": ("executor",)}
        return Wanted(
            name=name,
            image=image,
            variables={"SPARK_LOCAL_IP": address, **(variables or {})},
            volumes=volumes,
            hosts=hosts,
            memory="2Gi",
            **chosen,
        )

    with ExitStack() as stack:

        def start(wanted: Wanted) -> subprocess.Popen[bytes]:
            return stack.enter_context(running(wanted, directory))

        def said(name: str) -> str:
            return log_of(name, directory).read_text(encoding="utf-8")

        master = start(container("spark-master", _MASTER, command=_master()))
        eventually(lambda: _in(r"(elected leader)", said("spark-master"), master), seconds=_SECONDS)
        driver = start(container("spark-driver", _DRIVER, command=_driver()))
        found = eventually(lambda: _in(r"^application (.+)", said("spark-driver"), driver), seconds=_SECONDS)
        start(container("spark-executor", _EXECUTOR, variables=_variables(found)))
        try:
            answer = eventually(lambda: _in(r"^answer (.*)", said("spark-driver"), driver), seconds=_SECONDS)
        except AssertionError as exc:
            raise RuntimeError(f"{exc}; the executor said: {said('spark-executor')[-3000:]}") from exc
        if json.loads(answer) != {"spark-executor": _ANSWER}:
            return [f"its answer is {answer}"]
    return []


def _in(pattern: str, log: str, process: subprocess.Popen[bytes]) -> str:
    found = re.search(pattern, log, re.MULTILINE)
    if found is None and process.poll() is not None:
        raise RuntimeError(f"it ended: {log[-3000:]}")
    time.sleep(0.2)
    return found[1] if found else ""


def _master() -> tuple[str, ...]:
    main = "org.apache.spark.deploy.master.Master"
    return (
        "java",
        "-cp",
        "/opt/spark/jars/*",
        main,
        "--host",
        _MASTER,
        "--port",
        str(_MASTER_PORT),
        "--webui-port",
        "0",
    )


def _driver() -> tuple[str, ...]:
    settings = {
        "spark.master": f"spark://{_MASTER}:{_MASTER_PORT}",
        "spark.driver.host": _DRIVER,
        "spark.driver.port": str(_DRIVER_PORT),
        "spark.driver.blockManager.port": str(_BLOCK_PORT),
        "spark.blockManager.port": str(_BLOCK_PORT),
        "spark.ui.enabled": "false",
    }
    return ("python", "-c", _PROGRAM, json.dumps(settings))


def _variables(told: str) -> dict[str, str]:
    """As Spark's own step for executors sets them in a pod, the driver's options for Java included."""
    application, *options = told.split()
    options += [f"-Dspark.driver.port={_DRIVER_PORT}", f"-Dspark.blockManager.port={_BLOCK_PORT}"]
    return {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{_DRIVER}:{_DRIVER_PORT}",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": application,
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_IP": _EXECUTOR,
        "SPARK_EXECUTOR_POD_NAME": "spark-executor",
        "SPARK_LOCAL_DIRS": "/tmp",  # noqa: S108
        **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)},
    }
