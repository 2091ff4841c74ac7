"""`noetl pause`, `resume`, `finalize` and `redrive`: what people do to executions."""

import asyncio

import click
from noetl_contracts.clients import RedrivenExecution
from noetl_core.ports.steering import Steered

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("--reason", default="", help="Why; it is kept with the event.")
@click.option("--cascade", is_flag=True, help="Pause everything that stands below it too.")
@output_option
@takes_server
def pause(*, execution_id: int, reason: str, cascade: bool, output: Output, find_server: FindServer) -> None:
    """Start nothing more of an execution; what runs goes on to its end, and its deadlines count.

    Repeating it is harmless.

    \b
    Examples:
      noetl pause 271828182845904523 --reason "database is being moved"
      noetl pause 271828182845904523 --cascade
    """

    async def steer() -> Steered:
        async with connected(find_server()) as clients:
            return await clients.executions.pause(None, execution_id, reason=reason, cascade=cascade)

    _show(execution_id, asyncio.run(steer()), output, "is paused")


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("--reason", default="", help="Why; it is kept with the event.")
@click.option("--cascade", is_flag=True, help="Let everything that stands below it go on too.")
@output_option
@takes_server
def resume(*, execution_id: int, reason: str, cascade: bool, output: Output, find_server: FindServer) -> None:
    """Let a paused execution go on with what was held back.

    Repeating it is harmless.

    \b
    Examples:
      noetl resume 271828182845904523
      noetl resume 271828182845904523 --cascade
    """

    async def steer() -> Steered:
        async with connected(find_server()) as clients:
            return await clients.executions.resume(None, execution_id, reason=reason, cascade=cascade)

    _show(execution_id, asyncio.run(steer()), output, "goes on")


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option(
    "--status",
    type=click.Choice(["COMPLETED", "FAILED"], case_sensitive=False),
    default="FAILED",
    show_default=True,
    help="How it ends.",
)
@click.option("--reason", default="", help="Why; it is kept with the event.")
@output_option
@takes_server
def finalize(*, execution_id: int, status: str, reason: str, output: Output, find_server: FindServer) -> None:
    """Force the end of an execution; what it runs is stopped, and what that would have delivered is ignored.

    Repeating it is harmless.

    \b
    Examples:
      noetl finalize 271828182845904523 --status COMPLETED --reason "the rest is done by hand"
    """

    async def end() -> Steered:
        async with connected(find_server()) as clients:
            return await clients.executions.finalize(None, execution_id, status=status, reason=reason)

    ended = asyncio.run(end())
    _show(execution_id, ended, output, f"is {ended.status}")


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("--step", default="", metavar="STEP", help="Where to begin; the step that failed if none is named.")
@click.option("--reason", default="", help="Why; it is kept with the event.")
@click.option("--start-key", default="", metavar="KEY", help="Repeating the command with it starts nothing else.")
@output_option
@takes_server
def redrive(
    *, execution_id: int, step: str, reason: str, start_key: str, output: Output, find_server: FindServer
) -> None:
    """Take up an ended execution again: a new one begins at a step, with the results and variables of the old one.

    The old execution stays as it is; the new one names it as `redrive_of`.

    \b
    Examples:
      noetl redrive 271828182845904523
      noetl redrive 271828182845904523 --step load -o json | jq -r .execution_id
    """

    async def start() -> RedrivenExecution:
        async with connected(find_server()) as clients:
            return await clients.executions.redrive(None, execution_id, step=step, reason=reason, start_key=start_key)

    redriven = asyncio.run(start())
    if output is Output.JSON:
        echo_json(
            {
                "execution_id": str(redriven.execution_id),
                "redrive_of": str(execution_id),
                "step": redriven.step,
                "path": redriven.path,
                "version": redriven.version,
                "created": redriven.created,
            }
        )
    else:
        click.echo(f"execution {redriven.execution_id} begins at {redriven.step!r} of {execution_id}")


def _show(execution_id: int, steered: Steered, output: Output, says: str) -> None:
    if output is Output.JSON:
        echo_json(
            {
                "execution_id": str(execution_id),
                "status": steered.status,
                "stream_version": steered.stream_version,
                "steered_descendants": steered.descendants,
            }
        )
    else:
        below = f", with {steered.descendants} below it" if steered.descendants else ""
        click.echo(f"execution {execution_id} {says}{below}")
