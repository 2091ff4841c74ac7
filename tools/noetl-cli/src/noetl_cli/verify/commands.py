"""`noetl verify run|bundle|render|all|snapshots`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
from noetl_core.errors import InvalidInput
from noetl_core.ports.streams import StreamHead

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, Server, connected, takes_server
from noetl_cli.exits import ExitCode
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.progress_line import ProgressLine
from noetl_cli.spark_options import takes_spark
from noetl_cli.tenants import named_tenant
from noetl_cli.verify.bulk import Bulk, bring_lake_up, lake_place, list_everything, list_heads, verify_all
from noetl_cli.verify.bundle_files import new_bundle, write_report
from noetl_cli.verify.bundle_report import bundle_report
from noetl_cli.verify.check_bundle import check_bundle
from noetl_cli.verify.make_bundle import Made, Options, make_bundle
from noetl_cli.verify.report_formats import FORMATS
from noetl_cli.verify.shown import bulk_lines, finding_lines, gate_lines, verdict_lines
from noetl_cli.verify.snapshots import SnapshotReport, verify_snapshots

MIB = 1024 * 1024
_ENGINE = "Spark, or this process alone."
_INDEX = "Digest of the index as it was told when the evidence was made."
_OUT = "Where the report goes, not into DIR; one that is there is replaced [default: standard output]."
_WAIT = "Seconds that projectors have to catch up."


@click.group()
def verify() -> None:
    """Prove that the log is what was written, and that what is live is what the log says.

    Events are chained by checksums; what was changed, removed or swapped is named. Live checksums come from the stored
    rows of projections, replayed ones from the log; each surface has to be equal. Exits with 1 if anything is not.
    """


@verify.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="Where the evidence goes [default: evidence-ID]."
)
@click.option("--no-bundle", is_flag=True, help="Only look, and write nothing.")
@click.option(
    "--max-payload-mb",
    default=8,
    show_default=True,
    type=click.IntRange(min=0, max=1024),
    help="Payloads up to this size come along; of larger ones the evidence says that they are there.",
)
@click.option(
    "--wait",
    "wait_seconds",
    default=10,
    show_default=True,
    type=click.IntRange(min=0, max=30),
    help=_WAIT,
)
@click.option("--projector", default="", metavar="URL", help="Operator port of a projector, for its summary.")
@output_option
@takes_server
def run(
    *,
    execution_id: int,
    into: Path | None,
    no_bundle: bool,
    max_payload_mb: int,
    wait_seconds: int,
    projector: str,
    output: Output,
    find_server: FindServer,
) -> None:
    """Verify one execution and write the evidence, which `noetl verify bundle` checks anywhere.

    \b
    Examples:
      noetl verify run 271828182845904523
      noetl verify run 271828182845904523 --into /media/audit/run -o json | jq .index_sha256
      noetl verify run 271828182845904523 --no-bundle
    """
    if no_bundle and into is not None:
        raise InvalidInput("--into says where to write, --no-bundle that nothing is written")
    directory = None if no_bundle else into or Path(f"evidence-{execution_id}")
    options = Options(
        execution_id=execution_id,
        max_payload_bytes=max_payload_mb * MIB,
        wait_seconds=wait_seconds,
        projector=projector,
    )
    made = asyncio.run(_make(find_server(), options, directory))
    if output is Output.JSON:
        echo_json(
            {
                **made.verdict.to_json(),
                "proved": not made.findings,
                "gates": {name: len(found) for name, found in made.found.items()},
                "findings": [one.to_json() for one in made.findings],
                "bundle": str(directory) if directory is not None else None,
                "index_sha256": made.index_sha256 if directory is not None else None,
            }
        )
    else:
        for line in (*verdict_lines(made.verdict), *gate_lines(made.found), *finding_lines(made.findings)):
            click.echo(line)
        if directory is not None:
            click.echo(f"evidence in {directory}, index {made.index_sha256}")
        click.echo("NOT PROVED" if made.findings else "proved")
    if made.findings:
        sys.exit(ExitCode.FAILED)


async def _make(server: Server, options: Options, directory: Path | None) -> Made:
    async with connected(server) as clients:
        with new_bundle(directory) as writer:
            return await make_bundle(clients, options, writer)


@verify.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--index-sha256", metavar="HEX", help=_INDEX)
@output_option
def bundle(*, directory: Path, index_sha256: str | None, output: Output) -> None:
    """Check evidence by itself, without any server: digests, shapes, the chain of events, payloads, parity.

    Somebody who can write the bundle can make another one that is as whole: compare --index-sha256, or the checksum of
    the last event, with what is known from elsewhere.

    \b
    Examples:
      noetl verify bundle evidence-271828182845904523
      noetl verify bundle /media/audit/run --index-sha256 9f86d08… -o json
    """
    checked = check_bundle(directory, index_sha256=index_sha256)
    if output is Output.JSON:
        echo_json(checked.to_json())
    else:
        if checked.verdict is not None:
            for line in verdict_lines(checked.verdict):
                click.echo(line)
        for line in (*gate_lines(checked.found), *finding_lines(checked.findings)):
            click.echo(line)
        click.echo(f"index {checked.index_sha256}")
        click.echo("NOT PROVED" if checked.findings else "proved")
    if checked.findings:
        sys.exit(ExitCode.FAILED)


@verify.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    default="markdown",
    show_default=True,
    help="How the report is written.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=_OUT)
@click.option("--index-sha256", metavar="HEX", help=_INDEX)
def render(*, directory: Path, form: str, out: Path | None, index_sha256: str | None) -> None:
    """Write a report of evidence for people: what was verified, every gate, checksums live beside replayed, all files.

    The evidence is checked first, as `noetl verify bundle` does, and the first line says whether it holds. Evidence
    that does not is shown with what was found, and the command exits with 1. HTML is one page that loads nothing.

    \b
    Examples:
      noetl verify render evidence-271828182845904523 --format html --out report.html
      noetl verify render /media/audit/run --format text | less
    """
    if out is not None and out.resolve().is_relative_to(directory.resolve()):
        raise InvalidInput(f"{out} is in the bundle, which would not hold any more: write the report elsewhere")
    report = bundle_report(check_bundle(directory, index_sha256=index_sha256))
    text = FORMATS[form](report)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_report(out, text)
        click.echo(f"{report.verdict}, report in {out}")
    if not report.holds:
        sys.exit(ExitCode.FAILED)


@verify.command(name="all")
@click.option("--tenant", metavar="TENANT/ORG", help="Whose executions; without it, all that the token may see.")
@click.option("--engine", type=click.Choice(["spark", "process"]), default="spark", show_default=True, help=_ENGINE)
@takes_spark
@click.option(
    "--lake",
    metavar="DIR|URL",
    help="Bring this lake up to the log, and read histories from its files: only what is new is asked for.",
)
@click.option(
    "--payloads",
    is_flag=True,
    help="Look for every payload that an event refers to, and read those of up to 8 MiB; takes as long as that takes.",
)
@click.option("--wait", "wait_seconds", default=10, show_default=True, type=click.IntRange(min=0, max=30), help=_WAIT)
@output_option
@takes_server
def everything(
    *,
    tenant: str | None,
    engine: str,
    jobs: int | None,
    master: str,
    memory: str,
    lake: str | None,
    payloads: bool,
    wait_seconds: int,
    output: Output,
    find_server: FindServer,
) -> None:
    """Verify every execution of a tenant, in parallel, as Spark jobs that use the same fold.

    Tasks read histories from the log as it is now, check their chains, replay them, and compare each surface with its
    live rows; with --payloads they look for the bytes that events refer to. They write no evidence: `noetl verify run`
    does, of one execution. With --lake they read files instead: that is for much history, and proves the files; events
    of the log that somebody changes after they were exported show only without it.

    \b
    Examples:
      noetl verify all
      noetl verify all --tenant acme/ops --jobs 8 -o json | jq '.failed[].findings'
      noetl verify all --payloads                  # are all results still there, and right?
      noetl verify all --engine process            # without Spark
    """
    if lake is not None and engine == "process":
        raise InvalidInput("--lake is read by Spark")
    place = None if lake is None else lake_place(lake)
    server = find_server()
    bulk = Bulk(
        scope=named_tenant(tenant),
        engine=engine,
        master=master,
        jobs=jobs or 0,
        memory=memory,
        lake=place,
        wait_seconds=wait_seconds,
        payloads=payloads,
    )
    with bulk.spark_jobs() as spark:
        bring_lake_up(server, bulk, spark)
        listed = asyncio.run(list_everything(server, bulk.scope))
        progress = ProgressLine(executions=len(listed.heads), events=sum(head.version for head in listed.heads))
        report = verify_all(server, bulk, listed, spark, progress)
        progress.clear()
    if output is Output.JSON:
        echo_json(report.to_json())
    else:
        for line in bulk_lines(report):
            click.echo(line)
    if not report.is_proved:
        sys.exit(ExitCode.FAILED)


@verify.command()
@click.option("--tenant", metavar="TENANT/ORG", help="Whose executions; without it, all that the token may see.")
@click.option(
    "--from-events",
    default=10_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Histories of so many events have a snapshot: NOETL_SNAPSHOT_INTERVAL_EVENTS of the projectors.",
)
@click.option("--wait", "wait_seconds", default=10, show_default=True, type=click.IntRange(min=0, max=300), help=_WAIT)
@output_option
@takes_server
def snapshots(
    *, tenant: str | None, from_events: int, wait_seconds: int, output: Output, find_server: FindServer
) -> None:
    """Verify that long histories have snapshots, and that replays that begin with one come to the same.

    Each long history is replayed twice, from its newest snapshot and from its first event. Exits with 1 if a state
    differs, or if a history that is long enough has no snapshot that can be used. One that is too large to be
    replayed in one piece is no failure, and no proof: it is counted as not compared.

    \b
    Examples:
      noetl verify snapshots
      noetl verify snapshots --tenant acme/ops --from-events 1000 -o json
    """
    server = find_server()
    every = asyncio.run(list_heads(server, named_tenant(tenant)))
    heads = [head for head in every if head.version >= from_events]
    report = asyncio.run(_compare_snapshots(server, heads, from_events, wait_seconds))
    if output is Output.JSON:
        echo_json(report.to_json())
    else:
        for one in report.compared:
            click.echo(one.line())
        click.echo(f"{len(report.compared)} histories of {from_events} events and more: {report.verdict()}")
    if report.failed:
        sys.exit(ExitCode.FAILED)


async def _compare_snapshots(
    server: Server, heads: list[StreamHead], from_events: int, wait_seconds: int
) -> SnapshotReport:
    progress = ProgressLine(executions=len(heads), events=sum(head.version for head in heads))
    async with connected(server) as clients:
        report = await verify_snapshots(
            clients.replay, heads, from_events=from_events, wait_seconds=wait_seconds, progress=progress
        )
    progress.clear()
    return report
