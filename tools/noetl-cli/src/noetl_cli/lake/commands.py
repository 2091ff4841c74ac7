"""`noetl lake export` and `noetl lake verify`."""

import os
import sys
import time
from dataclasses import asdict

import click
from noetl_adapters.lake.lake_files import open_lake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.spark.jobs import SparkJobs, job_settings
from noetl_core.errors import Corrupt, NotFound

from noetl_cli.connection import FindServer, takes_server
from noetl_cli.lake.bring_up import SPARK_FROM_EVENTS, Engine, Export, bring_up
from noetl_cli.lake.check import check_lake
from noetl_cli.lake.export import BATCH_EVENTS, Exported
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.text import one_line
from noetl_cli.spark_options import takes_spark
from noetl_cli.tenants import named_tenant


@click.group()
def lake() -> None:
    """Keep the event log as Parquet files, for analysis and for keeping."""


@lake.command()
@click.argument("place", metavar="DIR|URL")
@click.option("--tenant", metavar="TENANT/ORG", help="Whose events; else of the token's tenant, or of all of them.")
@click.option(
    "--batch-events",
    default=BATCH_EVENTS,
    show_default=True,
    type=click.IntRange(min=1, max=200_000),
    help="Events of a batch, which one task reads and writes.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "spark", "inline"]),
    default="auto",
    show_default=True,
    help=f"Spark, or this process alone; auto takes Spark from {SPARK_FROM_EVENTS:,} new events on, if it is here.",
)
@takes_spark
@output_option
@takes_server
def export(
    *,
    place: str,
    tenant: str | None,
    batch_events: int,
    engine: Engine,
    jobs: int | None,
    master: str,
    memory: str,
    output: Output,
    find_server: FindServer,
) -> None:
    """Bring a lake up to the log: new events only, each exactly once.

    Files are in events/tenant_id=…/date=…/, with the date on which the log took the events. Repeat it to add what has
    happened since; an export that was stopped goes on where its last batch ended. With much to add it runs as Spark
    jobs, on as many processors as there are; executors of a cluster need NoETL installed, api reachable, and the same
    place for the lake: a bucket, or a directory that all of them share.

    \b
    Examples:
      noetl lake export ./lake
      noetl lake export s3://bucket/lake --tenant acme/ops
      noetl lake export s3://bucket/lake --engine spark --master spark://HOST:7077
      duckdb -c "select event_type, count(*) from read_parquet('lake/events/*/*/*.parquet') group by 1"
    """
    asked = Export(
        place=place,
        scope=named_tenant(tenant),
        engine=engine,
        batch_events=batch_events,
        jobs=jobs or 0,
        master=master,
    )
    server = find_server()
    began = time.monotonic()
    with SparkJobs(job_settings(master=master, jobs=jobs or 0, memory=memory)) as spark:
        done, used = bring_up(server, asked, spark, _show_progress)
        seconds = time.monotonic() - began
    if output is Output.JSON:
        echo_json({**asdict(done), "engine": used, "seconds": round(seconds, 3)})
        return
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    rate = f", {done.events / seconds:,.0f} events/s" if done.events else ""
    click.echo(f"{done.events} events of {done.executions} executions in {done.files} files{rate}")


@lake.command()
@click.argument("place", metavar="DIR|URL")
@output_option
def verify(*, place: str, output: Output) -> None:
    """Check a lake by itself: files unchanged, every event once, every history unbroken."""
    report = check_lake(open_lake(place, os.environ), ParquetEvents())
    if report.found_nothing:
        raise NotFound("lake", place)
    if output is Output.JSON:
        echo_json(asdict(report))
    else:
        for problem in report.problems:
            click.echo(one_line(problem))
        click.echo(f"{report.events} events of {report.executions} executions in {report.files} files")
    if report.problems:
        raise Corrupt(f"the lake is not what was exported: {len(report.problems)} problems")


def _show_progress(done: Exported) -> None:
    """One line that is written over; only for people who watch."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{done.events} events in {done.files} files", nl=False, err=True)
