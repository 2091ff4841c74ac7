"""`noetl status`, `cancel` and `list`: executions as the server shows them."""

import asyncio
import sys

import click
from noetl_contracts.clients import CancelledExecution
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.projections import ExecutionPage, ExecutionView

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.exits import exit_code_of_status
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.executions import (
    children_lines,
    detailed_document,
    execution_document,
    execution_lines,
    list_lines,
)

CHILDREN_SHOWN = 20


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@output_option
@takes_server
def status(*, execution_id: int, output: Output, find_server: FindServer) -> None:
    """Show one execution, its steps, and the newest executions that it has started.

    Exits with 0 while it runs or if it COMPLETED, 1 if it FAILED, 4 if it was CANCELLED, 3 if there is none.

    \b
    Examples:
      noetl status 271828182845904523
      noetl status 271828182845904523 -o json | jq -r .status
    """

    async def get() -> tuple[ExecutionView, ExecutionPage]:
        async with connected(find_server()) as clients:
            view = await clients.executions.get(None, execution_id)
            if not view.state.get("children"):
                return view, ExecutionPage(executions=())
            return view, await clients.executions.list(None, parent_execution_id=execution_id, page_size=CHILDREN_SHOWN)

    view, children = asyncio.run(get())
    if output is Output.JSON:
        echo_json(detailed_document(view, children))
    else:
        for line in (*execution_lines(view), *children_lines(view, children)):
            click.echo(line)
    sys.exit(exit_code_of_status(view.status))


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("--reason", default="", help="Why; it is kept with the event.")
@click.option("--no-cascade", is_flag=True, help="Leave the executions alone that it has started.")
@output_option
@takes_server
def cancel(*, execution_id: int, reason: str, no_cascade: bool, output: Output, find_server: FindServer) -> None:
    """End an execution and all that it has started; what they run is stopped within seconds.

    Repeating it is harmless, and goes on where it was interrupted.

    \b
    Examples:
      noetl cancel 271828182845904523 --reason "wrong file"
      noetl cancel 271828182845904523 --no-cascade
    """

    async def end() -> CancelledExecution:
        async with connected(find_server()) as clients:
            return await clients.executions.cancel(None, execution_id, reason=reason, cascade=not no_cascade)

    cancelled = asyncio.run(end())
    if output is Output.JSON:
        echo_json(
            {
                "execution_id": str(execution_id),
                "status": "CANCELLED",
                "stream_version": cancelled.stream_version,
                "cancelled_descendants": cancelled.cancelled_descendants,
            }
        )
    else:
        below = cancelled.cancelled_descendants
        click.echo(f"execution {execution_id} is cancelled" + (f", and {below} that it had started" if below else ""))


@click.command("list")
@click.option(
    "--status",
    type=click.Choice([status.value for status in ExecutionStatus], case_sensitive=False),
    help="Only these.",
)
@click.option("--path", default="", metavar="PATH", help="Only those of one playbook.")
@click.option("--parent", type=EXECUTION_ID, metavar="ID", help="Only those that this execution has started.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--page-token", default="", metavar="TOKEN", help="Go on where the last list ended.")
@output_option
@takes_server
def list_executions(
    *,
    status: str | None,
    path: str,
    parent: int | None,
    limit: int,
    page_token: str,
    output: Output,
    find_server: FindServer,
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
                None,
                status=status or "",
                path=path,
                parent_execution_id=parent,
                page_size=limit,
                page_token=page_token,
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
