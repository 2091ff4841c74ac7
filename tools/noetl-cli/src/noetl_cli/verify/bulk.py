"""Verifies all executions of a tenant: as Spark jobs, or one after the other in this process."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.spark.failures import describe
from noetl_adapters.spark.session import start_session
from noetl_adapters.verify.shares import ShareReport, Target, shares_of, verify_share
from noetl_core.canonical import decode
from noetl_core.errors import InvalidInput, NoetlError, Unavailable
from noetl_core.lake.manifest import EVENTS
from noetl_core.ports.event_log import Scope
from noetl_core.ports.spark import SparkSettings
from noetl_core.ports.streams import StreamHead

from noetl_cli.connection import Server, connected
from noetl_cli.lake.export import LakeExport
from noetl_cli.stream_heads import all_heads

TRIES: Final = 3
"""Of a task, before the whole fails."""
_OURS = re.compile(r"noetl_core\.errors\.(\w+): (.*)")

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
    lake: Path | None = None
    wait_seconds: int = 10

    @property
    def spark(self) -> SparkSettings:
        """A session with as many tasks at once as there are processors, each tried again when it is lost."""
        threads = self.jobs or os.cpu_count() or 2
        return SparkSettings(master=self.master or f"local[{threads},{TRIES}]", memory=self.memory)


@dataclass(slots=True, kw_only=True)
class BulkReport:
    """What came out."""

    executions: int
    events: int
    seconds: float
    unsettled: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    failed: list[Any] = field(default_factory=list)
    missing: int = 0
    """Executions that the log has and that were not looked at, which must not be."""

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
            "unsettled": self.unsettled,
            "missing": self.missing,
            "failed": self.failed,
        }


def lake_directory(place: str) -> Path:
    """The directory of a lake; Spark as it is shipped reads no buckets, so an address of one is refused."""
    address = urlsplit(place)
    if address.scheme in ("", "file"):
        directory = Path(address.path if address.scheme else place)
        if directory.exists() and not directory.is_dir():
            raise InvalidInput(f"--lake is a directory, and {str(directory)!r} is a file")
        return directory
    raise InvalidInput(
        f"--lake is a directory, not {place!r}: Spark reads its files, and reads none from a bucket. Copy the lake to "
        "a directory and name that, or leave --lake out; `noetl lake verify` checks a lake in a bucket by itself"
    )


async def list_heads(server: Server, bulk: Bulk) -> list[StreamHead]:
    """Where every stream ends, from the log; a lake is brought up to it before."""
    async with connected(server) as clients:
        if bulk.lake is not None:
            lake = open_lake(str(bulk.lake), os.environ)
            await LakeExport(clients.events, clients.evidence, lake, ParquetEvents(), scope=bulk.scope).run()
        return await all_heads(clients.evidence, bulk.scope)


def verify_all(server: Server, bulk: Bulk, heads: Sequence[StreamHead], progress: Progress) -> BulkReport:
    """All of them; nothing here runs in an event loop, since tasks have their own."""
    target = Target(address=server.address, token=server.token, tls=server.tls, wait_seconds=float(bulk.wait_seconds))
    begun = time.monotonic()
    if not heads:
        total = ShareReport()
    elif bulk.engine == "process":
        total = _here(target, heads, progress)
    else:
        total = _on_spark(target, bulk, heads, progress)
    return BulkReport(
        executions=total.executions,
        events=total.events,
        seconds=time.monotonic() - begun,
        unsettled=total.unsettled,
        rows=total.rows,
        failed=sorted((decode(one.encode()) for one in total.failed), key=_by_execution),
        missing=max(len(heads) - total.executions, 0),
    )


def _here(target: Target, heads: Sequence[StreamHead], progress: Progress) -> ShareReport:
    total = ShareReport()
    for share in shares_of(heads):
        total.add_all(verify_share(target, share))
        progress(total.executions, total.events)
    return total


def _on_spark(target: Target, bulk: Bulk, heads: Sequence[StreamHead], progress: Progress) -> ShareReport:
    with tempfile.TemporaryDirectory(prefix="noetl-verify-") as scratch:
        try:
            spark = start_session(bulk.spark, Path(scratch))
            from noetl_adapters.spark.verify_job import verify_lake, verify_log  # noqa: PLC0415 - needs pyspark
        except ImportError as exc:
            raise Unavailable(
                "Spark is not installed here: install pyspark, or name another engine with --engine process"
            ) from exc
        try:
            if bulk.lake is None:
                return verify_log(spark, target, heads, progress)
            root = bulk.lake.absolute()
            files = [f"file://{root / path}" for path in open_lake(str(root), os.environ).list(EVENTS)]
            return verify_lake(spark, target, files, {head.execution_id: head for head in heads}, progress)
        except NoetlError:
            raise
        except Exception as exc:
            raise _failure(exc) from exc
        finally:
            spark.stop()


def _failure(exc: Exception) -> NoetlError:
    """What a task said, without the way that it took through two languages."""
    told = _OURS.findall(str(exc))
    if told:
        name, message = told[-1]
        kind = Unavailable if name in ("Unavailable", "DeadlinePassed", "Overloaded") else BulkFailed
        return kind(f"a task failed: {message.strip()}")
    return BulkFailed(f"the Spark job failed: {describe(exc, None).message}")


def _by_execution(verdict: Any) -> int:
    return int(verdict["execution_id"])
