"""`noetl lake export` and `noetl lake verify`."""

import asyncio
import os
import sys
import time
from dataclasses import asdict

import click
from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_core.errors import Corrupt
from noetl_core.ports.event_log import Scope

from noetl_cli.connection import FindServer, Server, connected, takes_server
from noetl_cli.lake.check import check_lake
from noetl_cli.lake.export import BATCH_EVENTS, Exported, LakeExport
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.tenants import named_tenant


@click.group()
def lake() -> None:
    """Keep the event log as Parquet files, for analysis and for keeping."""


@lake.command()
@click.argument("place", metavar="DIR|URL")
@click.option("--tenant", metavar="TENANT/ORG", help="Whose events; without it, all that the token may see.")
@click.option("--batch-events", default=BATCH_EVENTS, show_default=True, type=click.IntRange(min=1, max=200_000))
@output_option
@takes_server
def export(*, place: str, tenant: str | None, batch_events: int, output: Output, find_server: FindServer) -> None:
    """Bring a lake up to the log: new events only, each exactly once.

    Files are in events/tenant_id=…/date=…/, with the date on which the log took the events. Repeat it to add what has
    happened since; an export that was stopped goes on where its last batch ended.

    \b
    Examples:
      noetl lake export ./lake
      noetl lake export s3://bucket/lake --tenant acme/ops
      duckdb -c "select event_type, count(*) from read_parquet('lake/events/*/*/*.parquet') group by 1"
    """
    began = time.monotonic()
    done = asyncio.run(_export(find_server(), place, named_tenant(tenant), batch_events))
    seconds = time.monotonic() - began
    if output is Output.JSON:
        echo_json({**asdict(done), "seconds": round(seconds, 3)})
        return
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    rate = f", {done.events / seconds:,.0f} events/s" if done.events else ""
    click.echo(f"{done.events} events of {done.executions} executions in {done.files} files{rate}")


async def _export(server: Server, place: str, scope: Scope | None, batch_events: int) -> Exported:
    async with connected(server) as clients:
        one_lake = LakeExport(
            clients.events,
            clients.evidence,
            open_lake(place, os.environ),
            ParquetEvents(),
            scope=scope,
            batch_events=batch_events,
            report=_show_progress,
        )
        return await one_lake.run()


@lake.command()
@click.argument("place", metavar="DIR|URL")
@output_option
def verify(*, place: str, output: Output) -> None:
    """Check a lake by itself: files unchanged, every event once, every history unbroken."""
    report = check_lake(open_lake(place, os.environ), ParquetEvents())
    if output is Output.JSON:
        echo_json(asdict(report))
    else:
        for problem in report.problems:
            click.echo(problem)
        click.echo(f"{report.events} events of {report.executions} executions in {report.files} files")
    if report.problems:
        raise Corrupt(f"the lake is not what was exported: {len(report.problems)} problems")


def _show_progress(done: Exported) -> None:
    """One line that is written over; only for people who watch."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{done.events} events in {done.files} files", nl=False, err=True)
