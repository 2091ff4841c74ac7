"""A real Spark standalone cluster on the loopback: a master and workers, from the same wheel as pyspark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from noetl_adapters.spark.session import environment_of
from noetl_core.ports.spark import SparkSettings

from noetl_testkit.backends import temporary_directory
from noetl_testkit.eventually import eventually

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_UP = re.compile(r"Starting Spark master at (spark://\S+)")
_START_SECONDS = 300.0


@contextmanager
def standalone_cluster(*, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[str]:
    """The address of the master, once all workers have told it that they are there; all of it is gone afterwards.

    Executors of worker n are told that they are on the node `spark-n`.
    """
    with temporary_directory() as directory, ExitStack() as stack:
        log = directory / "master.log"
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(_daemon(_MASTER, options, directory, log))
        eventually(lambda: _UP.search(log.read_text()), seconds=_START_SECONDS)
        address = _UP.findall(log.read_text())[0]
        for number in range(workers):
            work = directory / f"worker-{number}"
            shape = ["--cores", str(cores), "--memory", memory, "--work-dir", str(work)]
            where = ["--host", "127.0.0.1", "--webui-port", "0", address]
            place = {"NOETL_NODE_ID": f"spark-{number}"}
            log_of_worker = directory / f"worker-{number}.log"
            stack.enter_context(_daemon(_WORKER, [*shape, *where], directory, log_of_worker, **place))
        eventually(lambda: log.read_text().count("Registering worker") >= workers, seconds=_START_SECONDS)
        yield address


@contextmanager
def _daemon(program: str, options: list[str], directory: Path, log: Path, **told: str) -> Iterator[None]:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    settings = SparkSettings(master="spark://127.0.0.1")
    environment = environment_of(os.environ, settings=settings, scratch=directory)
    environment |= {"SPARK_HOME": str(home), "SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable, **told}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - Spark's own script
            [home / "bin" / "spark-class", program, *options],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
