"""`noetl logs`: what user code printed, from where payloads are kept."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator

import click
from noetl_contracts.clients import ExecutionClient
from noetl_contracts.mapping.call_logs import LogBatch
from noetl_core.call_logs import EndedCallLog
from noetl_core.errors import DeadlinePassed, Unavailable

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, Server, connected, takes_server
from noetl_cli.exits import ExitCode, exit_code_of_status
from noetl_cli.output import Output, echo_json, echo_json_line, output_option
from noetl_cli.shown.call_logs import call_log_document, call_log_lines

_PATIENCE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("step", required=False, default="")
@click.option("-f", "--follow", is_flag=True, help="Go on with calls as they end, until the execution does.")
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(min=0.0), help="With --follow: seconds to wait.")
@output_option
@takes_server
def logs(
    *,
    execution_id: int,
    step: str,
    follow: bool,
    timeout_seconds: float | None,
    output: Output,
    find_server: FindServer,
) -> None:
    """Show what the code of an execution printed, or that of one STEP.

    Output is shown in the order in which calls ended; lines after `!` went to standard error. The middle of long output
    is left out. With --follow it exits as `noetl run` does, and with --follow -o json every line is one attempt.

    \b
    Examples:
      noetl logs 271828182845904523
      noetl logs 271828182845904523 load --follow
      noetl logs 271828182845904523 -o json | jq -r '.logs[].outputs[].stdout'
    """
    server = find_server()
    if follow:
        sys.exit(asyncio.run(_follow(server, execution_id, step, timeout_seconds, output)))
    calls = asyncio.run(_read(server, execution_id, step, output))
    if output is Output.JSON:
        echo_json({"execution_id": str(execution_id), "logs": [call_log_document(call) for call in calls]})
    elif not calls:
        click.echo("nothing was printed")


async def _read(server: Server, execution_id: int, step: str, output: Output) -> list[EndedCallLog]:
    """Text is shown while it comes; a document is whole."""
    calls: list[EndedCallLog] = []
    async with connected(server) as clients:
        async for batch in clients.executions.read_logs(None, execution_id, step=step):
            calls += batch.calls
            if output is Output.TEXT:
                _show(batch, output)
    return calls


async def _follow(
    server: Server, execution_id: int, step: str, timeout_seconds: float | None, output: Output
) -> ExitCode:
    async with connected(server) as clients:
        try:
            async with asyncio.timeout(timeout_seconds):
                async for batch in _follow_through_outages(clients.executions, execution_id, step):
                    _show(batch, output)
        except TimeoutError as exc:
            raise DeadlinePassed(f"execution {execution_id} has not ended within {timeout_seconds:g} s") from exc
        return exit_code_of_status((await clients.executions.get(None, execution_id)).status)


async def _follow_through_outages(
    executions: ExecutionClient, execution_id: int, step: str
) -> AsyncGenerator[LogBatch, None]:
    """Each log once, across restarts of the server; one that never answered is not waited for."""
    next_version, pause_seconds = 0, _FIRST_PAUSE_SECONDS
    has_answered = False
    away_since: float | None = None
    while True:
        try:
            logs = executions.read_logs(None, execution_id, step=step, from_version=next_version, follow=True)
            async for batch in logs:
                has_answered, away_since, pause_seconds = True, None, _FIRST_PAUSE_SECONDS
                next_version = batch.next_version
                yield batch
                if batch.terminal:
                    return
        except Unavailable:
            now = time.monotonic()
            away_since = now if away_since is None else away_since
            if not has_answered or now - away_since > _PATIENCE_SECONDS:
                raise
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)


def _show(batch: LogBatch, output: Output) -> None:
    for call in batch.calls:
        if output is Output.JSON:
            echo_json_line(call_log_document(call))
            continue
        for line in call_log_lines(call):
            click.echo(line)
