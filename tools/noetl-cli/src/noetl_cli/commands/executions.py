"""`noetl status`, `cancel` and `list`: executions as the server shows them."""

import asyncio
import sys

import click
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.projections import ExecutionPage, ExecutionView

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.exits import exit_code_of_status
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.executions import detailed_document, execution_document, execution_lines, list_lines


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@output_option
@takes_server
def status(*, execution_id: int, output: Output, find_server: FindServer) -> None:
    """Show one execution and its steps.

    Exits with 0 while it runs or if it COMPLETED, 1 if it FAILED, 4 if it was CANCELLED, 3 if there is none.

    \b
    Examples:
      noetl status 271828182845904523
      noetl status 271828182845904523 -o json | jq -r .status
    """

    async def get() -> ExecutionView:
        async with connected(find_server()) as clients:
            return await clients.executions.get(None, execution_id)

    view = asyncio.run(get())
    if output is Output.JSON:
        echo_json(detailed_document(view))
    else:
        for line in execution_lines(view):
            click.echo(line)
    sys.exit(exit_code_of_status(view.status))


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("--reason", default="", help="Why; it is kept with the event.")
@output_option
@takes_server
def cancel(*, execution_id: int, reason: str, output: Output, find_server: FindServer) -> None:
    """End an execution now; what it runs is stopped within seconds.

    \b
    Example:
      noetl cancel 271828182845904523 --reason "wrong file"
    """

    async def end() -> int:
        async with connected(find_server()) as clients:
            return await clients.executions.cancel(None, execution_id, reason=reason)

    stream_version = asyncio.run(end())
    if output is Output.JSON:
        echo_json({"execution_id": str(execution_id), "status": "CANCELLED", "stream_version": stream_version})
    else:
        click.echo(f"execution {execution_id} is cancelled")


@click.command("list")
@click.option(
    "--status",
    type=click.Choice([status.value for status in ExecutionStatus], case_sensitive=False),
    help="Only these.",
)
@click.option("--path", default="", metavar="PATH", help="Only those of one playbook.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--page-token", default="", metavar="TOKEN", help="Go on where the last list ended.")
@output_option
@takes_server
def list_executions(
    *, status: str | None, path: str, limit: int, page_token: str, output: Output, find_server: FindServer
) -> None:
    """List executions, newest first.

    \b
    Examples:
      noetl list --status FAILED
      noetl list --path examples/hello_world --limit 5 -o json | jq -r '.executions[].execution_id'
    """

    async def get() -> ExecutionPage:
        async with connected(find_server()) as clients:
            return await clients.executions.list(
                None, status=status or "", path=path, page_size=limit, page_token=page_token
            )

    page = asyncio.run(get())
    if output is Output.JSON:
        documents = [execution_document(view) for view in page.executions]
        echo_json({"executions": documents, "next_page_token": page.next_page_token or None})
        return
    for line in list_lines(page.executions) if page.executions else ["no executions"]:
        click.echo(line)
    if page.next_page_token:
        click.echo(f"there are more: --page-token {page.next_page_token}")
