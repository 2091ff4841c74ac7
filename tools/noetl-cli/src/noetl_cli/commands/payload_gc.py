"""`noetl payload gc`: finds what no event reaches, and has it collected."""

import asyncio
import re
import sys
from dataclasses import asdict
from typing import Any

import click
from noetl_core.collection.report import CollectionReport

from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.durations import clock_text, span_text, time_text

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


class SpanType(click.ParamType[float]):
    """A span of time such as 36h or 7d; a bare number is of seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _SPAN.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no span of time such as 90m, 36h or 7d", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


@click.command()
@click.option("--apply", is_flag=True, help="Do it; without this, only say what would be done.")
@click.option("--grace", type=SpanType(), default=0.0, help="Such as 36h or 7d; else what the server is set to.")
@output_option
@takes_server
def gc(*, apply: bool, grace: float, output: Output, find_server: FindServer) -> None:
    """Collect payloads that no event reaches: mark, withdraw, sweep.

    What is unreached is marked; if it still is after the grace period, it is put aside, where readers find it; and
    after another grace period it is deleted. What an event refers to meanwhile stays. Each step is an event, and one
    run takes each collection one step further, so run this now and then, or set NOETL_REAPER_PAYLOAD_GC_SECONDS.

    \b
    Examples:
      noetl payload gc
      noetl payload gc --apply --grace 7d
    """

    async def collect() -> CollectionReport:
        async with connected(find_server()) as clients:
            async for report in clients.payloads.collect(None, apply=apply, grace_seconds=grace):
                _show_progress(report)
        return report

    report = asyncio.run(collect())
    if output is Output.JSON:
        echo_json(_document(report))
        return
    for line in _lines(report):
        click.echo(line)


def _show_progress(report: CollectionReport) -> None:
    """One line that is written over; only for people who watch."""
    if not sys.stderr.isatty():
        return
    if report.phase == "done":
        click.echo("\r\x1b[K", nl=False, err=True)
    else:
        click.echo(f"\r\x1b[K{report.events} events, {report.payloads} payloads read", nl=False, err=True)


def _document(report: CollectionReport) -> dict[str, Any]:
    return {
        **asdict(report),
        "next_due": time_text(report.next_due),
        "collections": [str(execution_id) for execution_id in report.collections],
    }


def _lines(report: CollectionReport) -> list[str]:
    did = "" if report.applied else "would be "
    lines = [
        f"{report.payloads} payloads, {report.payload_bytes} bytes; {report.events} events read",
        f"{report.unreferenced} not reached by any event, {report.unreferenced_bytes} bytes; {report.young} too young",
        f"{did}marked:     {report.marked}, {report.marked_bytes} bytes; grace {span_text(report.grace_seconds)}",
        f"{did}withdrawn:  {report.withdrawn}, {report.withdrawn_bytes} bytes; {report.spared} spared",
        f"{did}swept:      {report.swept}, {report.swept_bytes} bytes; {report.restored} restored",
    ]
    if report.waiting:
        lines.append(f"{report.waiting} in their grace period")
    if report.next_due is not None:
        lines.append(f"next step from {clock_text(report.next_due)}")
    lines += [f"see noetl events {execution_id}" for execution_id in report.collections]
    if not report.applied:
        lines.append("nothing was changed: --apply does it")
    return lines
