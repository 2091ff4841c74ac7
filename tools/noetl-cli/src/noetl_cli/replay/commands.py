"""`noetl replay state|diff|drift|events`."""

from __future__ import annotations

import asyncio
import sys

import click
from noetl_contracts.clients import ReplayedState
from noetl_core.errors import InvalidInput
from noetl_core.replay.differences import differences
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import Surface

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, Server, connected, takes_server
from noetl_cli.exits import ExitCode
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.replay.drift import DriftReport, compare_all, history_lines
from noetl_cli.replay.other_release import folding_with
from noetl_cli.replay.points import POINT
from noetl_cli.replay.shown import difference_lines, point_document, state_document, state_lines
from noetl_cli.shown.progress_line import ProgressLine
from noetl_cli.stream_heads import all_heads, heads_of

_SURFACES = ["all", *map(str, Surface)]


@click.group()
def replay() -> None:
    """See what an execution was at any point of its history, from its log alone.

    A point is `head`, a position such as 18, `event:ID`, or a time such as 2026-01-01T12:00:00Z by the log's clock.
    """


@replay.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("--at", "point", type=POINT, default="head", show_default=True, metavar="POINT", help="Which state.")
@click.option(
    "--surface", type=click.Choice([*_SURFACES, "none"]), default="all", show_default=True, help="Which rows to show."
)
@click.option("--resolve-payloads", is_flag=True, help="Look for every payload that the history refers to.")
@click.option("--from-start", is_flag=True, help="Fold every event, whatever snapshots there are.")
@output_option
@takes_server
def state(
    *,
    execution_id: int,
    point: Point,
    surface: str,
    resolve_payloads: bool,
    from_start: bool,
    output: Output,
    find_server: FindServer,
) -> None:
    """Show the state of an execution at a point, with its checksums.

    \b
    Examples:
      noetl replay state 271828182845904523
      noetl replay state 271828182845904523 --at 7 --surface commands
      noetl replay state 271828182845904523 --at 2026-01-01T12:00:00Z -o json | jq .checksum
    """

    async def ask() -> ReplayedState:
        async with connected(find_server()) as clients:
            return await clients.replay.state(
                None,
                execution_id,
                point,
                projection=surface,
                resolve_payloads=resolve_payloads,
                from_start=from_start,
            )

    replayed = asyncio.run(ask())
    if output is Output.JSON:
        echo_json(state_document(replayed, resolved=resolve_payloads))
        return
    for line in state_lines(replayed, resolved=resolve_payloads):
        click.echo(line)


@replay.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("first", type=POINT, metavar="FROM")
@click.argument("last", type=POINT, default="head", metavar="[TO]")
@click.option("--surface", type=click.Choice(_SURFACES), default="all", show_default=True, help="Which rows.")
@output_option
@takes_server
def diff(
    *, execution_id: int, first: Point, last: Point, surface: str, output: Output, find_server: FindServer
) -> None:
    """Show what changed in an execution between two points.

    \b
    Examples:
      noetl replay diff 271828182845904523 7 18
      noetl replay diff 271828182845904523 event:271828182845904999 -o json | jq '.differences[].key'
    """

    async def ask() -> tuple[ReplayedState, ReplayedState]:
        async with connected(find_server()) as clients:
            before = await clients.replay.state(None, execution_id, first, projection=surface)
            return before, await clients.replay.state(None, execution_id, last, projection=surface)

    before, after = asyncio.run(ask())
    found = differences(before.rows, after.rows)
    if output is Output.JSON:
        document = {"from": point_document(before), "to": point_document(after)}
        echo_json({**document, "differences": [one.to_json() for one in found]})
        return
    for line in difference_lines(before, after, found):
        click.echo(line)


@replay.command()
@click.argument("execution_ids", type=EXECUTION_ID, metavar="[ID]...", nargs=-1)
@click.option("--with", "path", metavar="PYTHONPATH", help="Where the other release is imported from.")
@click.option("--python", metavar="PROGRAM", help="An interpreter that has the other release installed.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest; without it, all of them.")
@output_option
@takes_server
def drift(
    *,
    execution_ids: tuple[int, ...],
    path: str | None,
    python: str | None,
    limit: int | None,
    output: Output,
    find_server: FindServer,
) -> None:
    """Tell which executions another release would see differently, before it is deployed.

    Replays stored histories with the other release's upcasters and fold, and compares with what the server says of
    the same versions. Without --with and --python the other release is the one of this program. Without an ID it goes
    through all executions of the tenant. Exits with 1 if anything would change, or if a history cannot be compared.

    \b
    Examples:
      noetl replay drift --python /opt/noetl-next/bin/python
      noetl replay drift 271828182845904523 --with ../next/libs/noetl-core/src:../next/tools/noetl-cli/src
    """
    if execution_ids and limit is not None:
        raise InvalidInput("--limit is for all executions of a tenant, and not for those that are named")
    report = asyncio.run(_compare_all(find_server(), execution_ids, path=path, python=python, limit=limit))
    if output is Output.JSON:
        echo_json(report.to_json())
    else:
        for line in report.lines():
            click.echo(line)
    if not report.is_clean:
        sys.exit(ExitCode.FAILED)


@replay.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@takes_server
def events(*, execution_id: int, find_server: FindServer) -> None:
    """Print the stored events of an execution, a line each, sealed as they are in the log.

    The form is that of the golden histories, which any language can read.

    \b
    Example:
      noetl replay events 271828182845904523 > events.jsonl
    """

    async def show() -> None:
        async with connected(find_server()) as clients:
            async for line in history_lines(clients.events, execution_id):
                sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()

    asyncio.run(show())


async def _compare_all(
    server: Server, execution_ids: tuple[int, ...], *, path: str | None, python: str | None, limit: int | None
) -> DriftReport:
    async with connected(server) as clients, folding_with(path=path, python=python) as folding:
        known = await (heads_of(clients.evidence, execution_ids) if execution_ids else all_heads(clients.evidence))
        heads = known[-limit:] if limit is not None else known
        progress = ProgressLine(executions=len(heads), events=sum(head.version for head in heads))
        try:
            return await compare_all(
                clients.replay, clients.events, heads, folding, left_out=len(known) - len(heads), progress=progress
            )
        finally:
            progress.clear()
