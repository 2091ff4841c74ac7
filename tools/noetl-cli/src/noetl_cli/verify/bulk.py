"""Verifies all executions of a tenant: as Spark jobs, or one after the other in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.spark.api_access import ApiAccess
from noetl_adapters.spark.jobs import SparkJobs, job_settings, told_plainly
from noetl_adapters.spark.lake_events import lake_events
from noetl_adapters.spark.lake_job import LakeAccess
from noetl_adapters.spark.verify_job import verify_lake, verify_log
from noetl_adapters.verify.shares import ShareReport, Target, shares_of, verify_share
from noetl_core.canonical import decode
from noetl_core.errors import InvalidInput, NoetlError, NotFound
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.verdict import Verdict
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead

from noetl_cli.connection import Server, connected
from noetl_cli.lake.bring_up import Export, bring_up
from noetl_cli.stream_heads import all_heads
from noetl_cli.verify.hidden import find_hidden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]


class BulkFailed(NoetlError):
    """The jobs did not come to their end; nothing is said of what they were about."""

    code = "verify.bulk_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """What was asked for."""

    scope: Scope | None = None
    engine: str = "spark"
    master: str = ""
    jobs: int = 0
    memory: str = "1g"
    lake: str | None = None
    """Where it is, as `lake_place` gives it."""
    wait_seconds: int = 10
    payloads: bool = False

    def spark_jobs(self) -> SparkJobs:
        """Where they run, once there is one."""
        return SparkJobs(job_settings(master=self.master, jobs=self.jobs, memory=self.memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """What is to be verified."""

    heads: Sequence[StreamHead]
    hidden: Mapping[int, Finding]
    """What is told of executions that have no head among these, and must have one."""


@dataclass(slots=True, kw_only=True)
class BulkReport:
    """What came out."""

    executions: int
    events: int
    seconds: float
    unsettled: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    upcasters: dict[str, int] = field(default_factory=dict)
    """How many executions have live rows of each registry, by its digest."""
    other_registry: int = 0
    """How many of them are not of the registry that their log was read with."""
    failed: list[Any] = field(default_factory=list)
    missing: int = 0
    """Executions that the log has and that were not looked at, which must not be."""
    payloads: dict[str, int] | None = None
    """By what became of them; None if nobody asked for them."""

    @property
    def is_proved(self) -> bool:
        """Whether every execution is."""
        return not self.failed and not self.unsettled and not self.missing

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "executions": self.executions,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "events_per_second": round(self.events / self.seconds, 1) if self.seconds else 0.0,
            "proved": self.is_proved,
            "rows": self.rows,
            "upcasters": self.upcasters,
            "other_registry": self.other_registry,
            "unsettled": self.unsettled,
            "missing": self.missing,
            "payloads": self.payloads,
            "failed": self.failed,
        }


def lake_place(place: str) -> str:
    """Where a lake is: a directory, by its path or its address, or a bucket; it need not be there yet."""
    address = urlsplit(place)
    if address.scheme not in ("", "file"):
        open_lake(place, os.environ)  # refuses what is no place for one
        return place
    directory = Path(address.path if address.scheme else place).absolute()
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"--lake is a directory or a bucket, and {str(directory)!r} is a file")
    return str(directory)


async def list_heads(server: Server, scope: Scope | None) -> list[StreamHead]:
    """Where every stream ends, from the log."""
    async with connected(server) as clients:
        return await all_heads(clients.evidence, scope)


async def list_everything(server: Server, scope: Scope | None) -> Everything:
    """By heads first, then by events and rows: what has begun in between has a head by then."""
    async with connected(server) as clients:
        heads = await all_heads(clients.evidence, scope)
        hidden = await find_hidden(clients.evidence, clients.evidence, scope, heads)
    return Everything(heads=heads, hidden=hidden)


def bring_lake_up(server: Server, bulk: Bulk, jobs: SparkJobs) -> None:
    """Before heads are listed: what happens later is asked for."""
    if bulk.lake is not None:
        asked = Export(place=bulk.lake, scope=bulk.scope, jobs=bulk.jobs, master=bulk.master)
        bring_up(server, asked, jobs)


def verify_all(server: Server, bulk: Bulk, listed: Everything, jobs: SparkJobs, progress: Progress) -> BulkReport:
    """All of them; nothing here runs in an event loop, since tasks have their own."""
    api = ApiAccess(address=server.address, token=server.token, tls=server.tls)
    target = Target(api=api, wait_seconds=float(bulk.wait_seconds), payloads=bulk.payloads)
    heads = listed.heads
    spark = jobs.session() if heads and bulk.engine != "process" else None
    begun = time.monotonic()  # a session takes seconds to start, which say nothing of the work
    total = _on_spark(target, bulk, heads, spark, progress) if spark is not None else _here(target, heads, progress)
    return BulkReport(
        executions=total.executions,
        events=total.events,
        seconds=time.monotonic() - begun,
        unsettled=total.unsettled,
        rows=total.rows,
        upcasters=total.upcasters,
        other_registry=total.other_registry,
        failed=_failed(total.failed, listed.hidden),
        missing=len({head.execution_id for head in heads} - total.seen),
        payloads=total.payloads if bulk.payloads else None,
    )


def _here(target: Target, heads: Sequence[StreamHead], progress: Progress) -> ShareReport:
    total = ShareReport()
    for share in shares_of(heads):
        total.add_all(verify_share(target, share))
        progress(total.executions, total.events)
    return total


def _on_spark(
    target: Target, bulk: Bulk, heads: Sequence[StreamHead], spark: SparkSession, progress: Progress
) -> ShareReport:
    with told_plainly(BulkFailed):
        total = ShareReport() if bulk.lake is None else _from_lake(target, bulk.lake, heads, spark, progress)
        # Without a lake these are all; with one, those that have begun since it was brought up.
        left = [head for head in heads if head.execution_id not in total.seen]
        if left:
            executions, events = total.executions, total.events
            total.add_all(
                verify_log(spark, target, left, lambda more, further: progress(executions + more, events + further))
            )
    return total


def _from_lake(
    target: Target, place: str, heads: Sequence[StreamHead], spark: SparkSession, progress: Progress
) -> ShareReport:
    try:
        events = lake_events(spark, LakeAccess.of(place, os.environ))
    except NotFound:
        return ShareReport()  # there was nothing when it was brought up
    return verify_lake(spark, target, events, {head.execution_id: head for head in heads}, progress)


def _failed(verdicts: Iterable[str], hidden: Mapping[int, Finding]) -> list[Any]:
    """By execution; one that is hidden from the log's list may be in a lake, and have a verdict of its own."""
    failed: dict[int, Any] = {}
    for one in verdicts:
        verdict: Any = decode(one.encode())
        failed[int(verdict["execution_id"])] = verdict
    for execution_id, finding in hidden.items():
        verdict = failed.setdefault(execution_id, Verdict(execution_id=execution_id, version=0, events=0).to_json())
        verdict["findings"].append(finding.to_json())
        verdict["proved"] = False
    return [failed[one] for one in sorted(failed)]
