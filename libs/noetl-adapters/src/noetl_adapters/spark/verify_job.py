"""Bulk verification as Spark jobs: every task works on shares with the same code that verifies one execution."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from noetl_core.envelope import StoredEvent
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.verdict import HistoryCheck
from noetl_core.ports.streams import StreamHead

from noetl_adapters.verify.shares import SHARE_EVENTS, SHARE_EXECUTIONS, ShareReport, Target, shares_of, verify_share

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import DataFrame, SparkSession

PROGRESS_SECONDS: Final = 0.5
MAX_PARTITIONS: Final = 2_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Progress = Callable[[int, int], None]
"""Told how many executions and events are done."""


def verify_log(spark: SparkSession, target: Target, heads: Sequence[StreamHead], progress: Progress) -> ShareReport:
    """Tasks read histories from api, as they are there now."""
    context = spark.sparkContext
    done = _Done(context)
    shares = list(shares_of(heads))
    jobs = context.parallelize(shares, max(len(shares), 1))
    return _sum(_with_progress(lambda: jobs.mapPartitions(_Shares(target, done)).collect(), done, progress))


def verify_lake(
    spark: SparkSession,
    target: Target | None,
    events: DataFrame,
    heads: Mapping[int, StreamHead],
    progress: Progress,
) -> ShareReport:
    """Histories come from a lake (`lake_events`), and from api only what happened to them since.

    What has begun since is not among what was seen. Without a target histories are checked and folded, and compared
    with nothing.
    """
    context = spark.sparkContext
    done = _Done(context)
    partitions = max(sum(head.version for head in heads.values()) // SHARE_EVENTS, 2 * context.defaultParallelism)
    ordered = events.repartition(min(partitions, MAX_PARTITIONS), "execution_id").sortWithinPartitions(
        "execution_id", "stream_version"
    )
    job = ordered.rdd.mapPartitions(_Histories(target, context.broadcast(dict(heads)), done))
    return _sum(_with_progress(job.collect, done, progress))


class _Done:
    """Counts that tasks add to and that the driver reads while they run."""

    def __init__(self, context: SparkContext) -> None:
        self.executions: Accumulator[int] = context.accumulator(0)
        self.events: Accumulator[int] = context.accumulator(0)

    def add(self, report: ShareReport) -> None:
        self.executions.add(report.executions)
        self.events.add(report.events)


class _Shares:
    """What a task of `verify_log` is given."""

    def __init__(self, target: Target, done: _Done) -> None:
        self._target = target
        self._done = done

    def __call__(self, shares: Iterable[list[StreamHead]]) -> Iterator[ShareReport]:
        for share in shares:
            report = verify_share(self._target, share)
            self._done.add(report)
            yield report


class _Histories:
    """What a task of `verify_lake` is given: events by execution and version."""

    def __init__(self, target: Target | None, heads: Any, done: _Done) -> None:
        self._target = target
        self._heads = heads
        self._done = done

    def __call__(self, rows: Iterable[Sequence[Any]]) -> Iterator[ShareReport]:
        begun: dict[int, HistoryCheck] = {}
        events = 0
        for row in rows:
            check = begun.get(row[0])
            if check is None:
                if len(begun) >= SHARE_EXECUTIONS or events >= SHARE_EVENTS:
                    yield self._settle(begun)
                    begun, events = {}, 0
                check = begun[row[0]] = HistoryCheck(row[0])
            check.take([_event(row)])
            events += 1
        if begun:
            yield self._settle(begun)

    def _settle(self, begun: Mapping[int, HistoryCheck]) -> ShareReport:
        known: Mapping[int, StreamHead] = self._heads.value
        report = ShareReport()
        if self._target is not None:
            report = verify_share(self._target, [known[one] for one in begun if one in known], begun)
        for one, check in begun.items():
            if self._target is not None and one not in known:
                told = f"the lake has {check.events} events of it, and the log has none"
                check.findings.append(Finding(code="log.lost", message=told, stream_version=1))
            if self._target is None or one not in known:
                report.add(check.alone())
        self._done.add(report)
        return report


def _event(row: Sequence[Any]) -> StoredEvent:
    """Columns as `lake_events` gives them."""
    return StoredEvent(
        body=bytes(row[1]),
        stream_version=row[2],
        aggregate_version=row[3],
        ingest_time=_EPOCH + timedelta(microseconds=row[4]),
        prev_checksum=row[5],
        checksum=row[6],
    )


def _with_progress(job: Callable[[], Any], done: _Done, progress: Progress) -> Any:
    """Run a job on a thread, and tell how far it is until it has ended."""
    from pyspark import InheritableThread  # noqa: PLC0415 - only where Spark runs

    outcome: list[Any] = []
    failure: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append(job())
        except BaseException as exc:
            failure.append(exc)
        finally:
            ended.set()

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    while not ended.wait(PROGRESS_SECONDS):
        progress(done.executions.value, done.events.value)
    thread.join()
    progress(done.executions.value, done.events.value)
    if failure:
        raise failure[0]
    return outcome[0]


def _sum(reports: Iterable[ShareReport]) -> ShareReport:
    total = ShareReport()
    for report in reports:
        total.add_all(report)
    return total
