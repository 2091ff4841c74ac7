"""`noetl trace`: where the result of a step came from."""

import asyncio
from typing import Any

import click
from noetl_core.lineage import Trace, TracedResult

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.durations import time_text
from noetl_cli.shown.tables import table_lines


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("step")
@click.option("--at-version", type=click.IntRange(min=0), default=0, help="The step's last result up to this version.")
@output_option
@takes_server
def trace(*, execution_id: int, step: str, at_version: int, output: Output, find_server: FindServer) -> None:
    """Show the result of a STEP, the result that it was made from, and so on to the first.

    The references can be given to `noetl payload`.

    \b
    Examples:
      noetl trace 271828182845904523 report
      noetl trace 271828182845904523 report -o json | jq -r '.results[].reference.uri'
    """

    async def ask() -> Trace:
        async with connected(find_server()) as clients:
            return await clients.payloads.trace(None, execution_id, step, at_version=at_version)

    found = asyncio.run(ask())
    if output is Output.JSON:
        echo_json(
            {
                "execution_id": str(execution_id),
                "step": step,
                "results": [_document(result) for result in found.results],
                "truncated": found.truncated,
            }
        )
        return
    rows = [
        [str(r.stream_version), r.step, r.status, str(r.reference.get("bytes", "")), r.ref_id] for r in found.results
    ]
    for line in table_lines([["VERSION", "STEP", "STATUS", "BYTES", "REFERENCE"], *rows]):
        click.echo(line)
    if found.truncated:
        click.echo("… and older ones")


def _document(result: TracedResult) -> dict[str, Any]:
    return {
        "step": result.step,
        "stream_version": result.stream_version,
        "event_id": str(result.event_id),
        "command_id": result.command_id,
        "status": result.status,
        "recorded_at": time_text(result.recorded_at),
        "reference": result.reference,
        "parent_ref": None if result.parent_ref_id is None else {"ref_id": result.parent_ref_id},
    }
