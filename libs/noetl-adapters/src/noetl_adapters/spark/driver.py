"""The driver process of a worker: holds the session, runs calls on threads, and ends with whoever started it.

`python -m noetl_adapters.spark.driver`: messages come on stdin and go to stdout; whatever is printed goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from noetl_core.canonical import JsonValue
from noetl_core.errors import NoetlError
from noetl_core.ports.spark import SparkCall, SparkSettings, SparkTasks, SparkWork

from noetl_adapters.spark import framing
from noetl_adapters.spark.lasting_tasks import LastingTasks
from noetl_adapters.spark.printed import ThreadOutput
from noetl_adapters.spark.scheduler_pools import SchedulerPools
from noetl_adapters.spark.seats import Seats
from noetl_adapters.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_SECONDS = 1.0
CANCEL_SECONDS = 0.5
DYING_SECONDS = 1.0
NICENESS = 5
"""Of the driver, its JVM and local tasks: a query must not keep the worker from its leases."""
JVM_GONE = 3
"""Exit code when the JVM died: this process is good for nothing without it."""


class Driver:
    """Calls by their id; each has a job group, so that all that it runs can be cancelled."""

    def __init__(self, spark: SparkSession, *, scratch: Path, out: BinaryIO, output: ThreadOutput) -> None:
        self._spark = spark
        self._scratch = scratch
        self._out = out
        self._output = output
        self._sending = threading.Lock()
        self._pools = SchedulerPools()
        self._seats = Seats(lambda: int(spark.sparkContext.defaultParallelism))
        self._lasting = LastingTasks()
        self._running: dict[str, threading.Event] = {}
        self._cancelled: set[str] = set()

    def send(self, message: dict[str, Any]) -> None:
        """Tell the worker; calls and progress tell at the same time."""
        with self._sending:
            self._out.write(framing.pack(message))
            self._out.flush()

    def start(self, call: SparkWork) -> None:
        """Run a call on a thread that the JVM knows as one, with its own pool and job group."""
        from pyspark import InheritableThread  # noqa: PLC0415 - pyspark is imported when the session starts

        self._running[call.call_id] = threading.Event()
        InheritableThread(target=self._run, args=(call,), daemon=True).start()

    def cancel(self, call_id: str) -> None:
        """Cancel its jobs until it has ended: code may start another job after one was cancelled."""
        ended = self._running.get(call_id)
        if ended is not None:
            self._cancelled.add(call_id)
            threading.Thread(target=self._cancel, args=(call_id, ended), daemon=True).start()

    def _cancel(self, call_id: str, ended: threading.Event) -> None:
        while not ended.wait(CANCEL_SECONDS):
            with contextlib.suppress(Exception):  # a session that ends meanwhile is noticed elsewhere
                self._spark.sparkContext.cancelJobGroup(call_id)

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        """End tasks of a call that hold nothing but these shares; the others go on."""
        threading.Thread(target=self._release, args=(call_id, shares), daemon=True).start()

    def _release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        for tag in self._lasting.useless(call_id, shares):
            with contextlib.suppress(Exception):  # as in `_cancel`; whoever released them does it again
                self._spark.sparkContext.cancelJobsWithTag(tag)

    def _run(self, call: SparkWork) -> None:
        from noetl_adapters.spark.failures import describe  # noqa: PLC0415 - as above

        context = self._spark.sparkContext
        ended = self._running[call.call_id]
        answer: dict[str, Any] = {"id": call.call_id, "end": True}
        with self._pools.pool(call.execution_id) as pool, self._output.captured() as printed:
            try:
                context.setLocalProperty("spark.scheduler.pool", pool)
                context.setJobGroup(call.call_id, f"{call.execution_id}/{call.step}", interruptOnCancel=True)
                answer["data"] = self._ran(call)
                framing.pack({**answer, "stdout": printed.text()})
            except BaseException as exc:  # SystemExit of user code too: it is their failure, not ours
                if self._is_jvm_gone(exc):
                    os._exit(JVM_GONE)  # the worker knows what that means for every call
                answer.pop("data", None)
                answer["failure"] = dataclasses.asdict(describe(exc, getattr(call, "code", None)))
            finally:
                ended.set()
                del self._running[call.call_id]
                self._cancelled.discard(call.call_id)
        self.send({**answer, "stdout": printed.text()})
        if self._is_stopped():
            os._exit(JVM_GONE)

    def _ran(self, call: SparkWork) -> Any:
        from noetl_adapters.spark.calls import run_call  # noqa: PLC0415 - as above
        from noetl_adapters.spark.tasks import run_tasks  # noqa: PLC0415

        if isinstance(call, SparkCall):
            return run_call(self._spark, call, scratch=self._scratch)
        return run_tasks(
            self._spark,
            call,
            self._seats,
            self._lasting,
            is_wanted=lambda: call.call_id not in self._cancelled,
            began=lambda: self.send({"id": call.call_id, "began": True}),
        )

    def _is_stopped(self) -> bool:
        """Whether user code has ended the session, which is everybody's: the next call gets another."""
        context = self._spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())

    def _is_jvm_gone(self, error: BaseException) -> bool:
        """Whether an error may be what is seen of a JVM that dies, and one does; code has such errors of its own."""
        jvm = jvm_of(self._spark)
        if jvm is None or not (isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j")):
            return False
        try:
            jvm.wait(timeout=DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tell_progress(self) -> None:
        """What Spark says about the jobs of each call, when it has changed; asked once a second while calls run."""
        told: dict[str, tuple[int, ...]] = {}
        while True:
            time.sleep(PROGRESS_SECONDS)
            for call_id in tuple(self._running):
                now = None
                with contextlib.suppress(Exception):  # as in `_cancel`
                    now = self._progress(call_id)
                if now is not None and told.get(call_id) != now:
                    told[call_id] = now
                    self.send({"id": call_id, "progress": list(now)})
            told = {call_id: now for call_id, now in told.items() if call_id in self._running}

    def _progress(self, call_id: str) -> tuple[int, ...] | None:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(call_id)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        known = [stage for stage in stages if stage is not None]
        if not known:
            return None
        tasks, tasks_done = (
            sum(counts) for counts in zip(*((s.numTasks, s.numCompletedTasks) for s in known), strict=True)
        )
        stages_done = sum(stage.numTasks == stage.numCompletedTasks for stage in known)
        return stages_done, len(stages), tasks_done, tasks

    def stop(self) -> None:
        """End the session and the JVM in good order."""
        self._spark.stop()


def main() -> None:
    """Read the settings, start the session, then take requests until there are no more."""
    requests, out = _own_pipes()
    os.nice(NICENESS)
    first = framing.read(requests)
    if first is None:
        return
    scratch = Path(first["scratch"])
    try:
        spark = start_session(SparkSettings(**first["settings"]), scratch)
    except NoetlError as exc:
        out.write(framing.pack({"ready": False, "message": exc.message}))
        return
    except Exception as exc:
        out.write(framing.pack({"ready": False, "message": f"Spark does not start: {_first_line(exc)}"}))
        return
    output = ThreadOutput(sys.stderr)
    sys.stdout = output
    driver = Driver(spark, scratch=scratch, out=out, output=output)
    jvm = jvm_of(spark)
    if jvm is not None:
        threading.Thread(target=lambda: os._exit(JVM_GONE) if jvm.wait() is not None else None, daemon=True).start()
    threading.Thread(target=driver.tell_progress, daemon=True).start()
    driver.send({"ready": True, "version": spark.version, "jvm": jvm.pid if jvm is not None else 0})
    _serve(driver, requests)


def jvm_of(spark: SparkSession) -> subprocess.Popen[bytes] | None:
    """The process that pyspark has started."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def _serve(driver: Driver, requests: BinaryIO) -> None:
    while True:
        request = framing.read(requests)
        match request:
            case None:  # the worker is gone, and nobody wants to know what runs here
                os._exit(0)
            case {"stop": True}:
                driver.stop()
                os._exit(0)
            case {"cancel": str(call_id)}:
                driver.cancel(call_id)
            case {"release": str(call_id), "shares": list(shares)}:
                driver.release(call_id, shares)
            case {"call": dict(call)}:
                driver.start(SparkCall(**call))
            case {"tasks": dict(tasks)}:
                driver.start(SparkTasks(**tasks))
            case _:
                continue


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout away from everybody else: the JVM and user code inherit what is left."""
    requests, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, out


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:1000]


if __name__ == "__main__":
    main()
