"""Which measurements there are, how they are chosen, and in which order they run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from noetl_core.errors import NoetlError
from noetl_servicekit.event_loop import run_on_fast_loop

from benchmarks.bulk_replay import measure_bulk_replay
from benchmarks.delivery import measure_delivery
from benchmarks.figures import Figure, report
from benchmarks.frames import measure_frames, measure_waiting
from benchmarks.large_results import measure_large_results
from benchmarks.long_loop import measure_loop
from benchmarks.long_runs import measure_long_runs
from benchmarks.machine import loop_milliseconds, machine_facts
from benchmarks.payload_reads import measure_payloads
from benchmarks.playbooks import measure_concurrency, measure_latency
from benchmarks.processor_time import Others
from benchmarks.projection import measure_projection
from benchmarks.spark_words import measure_spark
from benchmarks.stack import Stack, running_stack
from benchmarks.throughput import measure_throughput

EXIT_BROKEN = 1


class Measurement(Protocol):
    """Takes figures of a running stack in about so many seconds a figure."""

    def __call__(self, stack: Stack, *, seconds: float, say: Callable[[str], None]) -> Awaitable[list[Figure]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A part of the report."""

    name: str
    help: str
    measure: Measurement
    share: float
    """Of `--seconds`, for each sample of this chapter."""


CHAPTERS = (
    # Idle measurements first: those that follow leave a log behind that is no longer small.
    Chapter(name="latency", help="a two-step playbook, one at a time", measure=measure_latency, share=2.0),
    Chapter(name="delivery", help="commit to consumer", measure=measure_delivery, share=1.5),
    Chapter(name="concurrency", help="50 two-step playbooks at once", measure=measure_concurrency, share=2.5),
    Chapter(name="steps", help="an execution of 10,000 steps", measure=measure_long_runs, share=1.0),
    Chapter(
        name="projection",
        help="lag of rows and status reads under 2,000 events/s",
        measure=measure_projection,
        share=4.0,  # one read in a hundred is worth a figure only when there are many hundreds of them
    ),
    Chapter(name="append", help="events/s as a share of plain INSERTs", measure=measure_throughput, share=0.5),
    Chapter(name="payloads", help="64 MiB from shared memory, disk and S3", measure=measure_payloads, share=0.5),
    Chapter(name="results", help="a step that returns 500 MB", measure=measure_large_results, share=0.5),
    Chapter(name="loop", help="100,000 items in frames, by tenths", measure=measure_loop, share=1.0),
    Chapter(name="waiting", help="rows that wait, and a query meanwhile", measure=measure_waiting, share=1.0),
    Chapter(
        name="frames", help="rows in frames on Spark, inline, and a bare script", measure=measure_frames, share=1.0
    ),
    Chapter(
        name="spark", help="word count by the tool, by plain PySpark, on a cluster", measure=measure_spark, share=1.0
    ),
    Chapter(name="replay", help="histories folded by one process and by Spark", measure=measure_bulk_replay, share=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    only: frozenset[str]
    seconds: float
    json_file: Path | None

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        names = [chapter.name for chapter in CHAPTERS]
        chapters = "\n".join(f"  {chapter.name:<12} {chapter.help}" for chapter in CHAPTERS)
        parser = argparse.ArgumentParser(
            prog="make bench",
            description="Starts a stack of its own, measures it, and reports; goals are reported, not enforced.",
            epilog=f"chapters:\n{chapters}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--only", action="append", choices=names, help="a chapter; may be given several times")
        parser.add_argument("--seconds", type=_positive, default=4.0, help="how long to measure [default: 4]")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
        parsed = parser.parse_args(arguments)
        return cls(only=frozenset(parsed.only or names), seconds=parsed.seconds, json_file=parsed.json)


def main(arguments: Sequence[str]) -> int:
    """Exits with 0 whatever the figures are, and with 1 when something broke."""
    options = Options.parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_BROKEN))  # so that the stack is taken down
    begun = time.monotonic()
    try:
        with running_stack(_say) as stack:
            facts, figures = run_on_fast_loop(_measure(stack, options))
    except NoetlError as exc:
        _say(f"broken: {exc}")
        return EXIT_BROKEN
    facts = {**facts, "whole run": f"{time.monotonic() - begun:.0f} s"}
    print(report(figures, facts))
    if options.json_file is not None:
        document: dict[str, Any] = {"facts": facts, "figures": [figure.to_json() for figure in figures]}
        options.json_file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


async def _measure(stack: Stack, options: Options) -> tuple[Mapping[str, str], list[Figure]]:
    facts = dict(await machine_facts(owner_dsn=stack.addresses.owner_dsn, directory=stack.home.root))
    figures: list[Figure] = []
    for chapter in CHAPTERS:
        if chapter.name in options.only:
            before, begun, others = loop_milliseconds(), time.monotonic(), Others()
            figures += await chapter.measure(stack, seconds=options.seconds * chapter.share, say=_say)
            seconds, (used, taken) = time.monotonic() - begun, others.shares()
            facts[f"chapter {chapter.name}"] = (
                f"{seconds:.0f} s; others used {used:.0%} of the processors, the host took {taken:.0%}; "
                f"a loop of Python took {before:.1f} ms before, {loop_milliseconds():.1f} ms after"
            )
    return facts, figures


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
