"""`noetl events`: what happened in an execution, from its log."""

import asyncio
import sys

import click
from noetl_core.envelope import StoredEvent
from noetl_core.errors import DeadlinePassed
from noetl_core.events import is_terminal
from noetl_core.fold import empty, fold
from noetl_core.ports.event_log import EventPage
from noetl_core.recorded import record

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import Clients, FindServer, Server, connected, takes_server
from noetl_cli.exits import ExitCode, exit_code_of_status
from noetl_cli.follow.watching import watch_through_outages
from noetl_cli.output import Output, echo_json, echo_json_line, output_option
from noetl_cli.shown.events import event_document, event_line

_PAGE_SIZE = 500


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is committed, until the execution ends.")
@click.option("--from", "from_version", default=1, show_default=True, type=click.IntRange(min=1), metavar="N")
@click.option("--limit", default=200, show_default=True, type=click.IntRange(min=1), help="Without --follow: at most.")
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(min=0.0), help="With --follow: seconds to wait.")
@output_option
@takes_server
def events(
    *,
    execution_id: int,
    follow: bool,
    from_version: int,
    limit: int,
    timeout_seconds: float | None,
    output: Output,
    find_server: FindServer,
) -> None:
    """Show the events of an execution, oldest first.

    With --follow it exits as `noetl run` does: 0 COMPLETED, 1 FAILED, 4 CANCELLED. With --follow -o json every line
    is one event.

    \b
    Examples:
      noetl events 271828182845904523
      noetl events 271828182845904523 --from 15 -o json | jq '.events[].event_type'
      noetl events 271828182845904523 --follow
    """
    server = find_server()
    if follow:
        sys.exit(asyncio.run(_follow(server, execution_id, from_version, timeout_seconds, output)))
    page = asyncio.run(_read(server, execution_id, from_version, limit))
    if output is Output.JSON:
        document = {
            "execution_id": str(execution_id),
            "head_version": page.head_version,
            "terminal": page.terminal,
            "events": [event_document(event) for event in page.events],
        }
        echo_json(document)
        return
    for event in page.events:
        click.echo(event_line(event))
    last = page.events[-1].stream_version if page.events else from_version - 1
    if last < page.head_version:
        click.echo(f"there are more, up to {page.head_version}: --from {last + 1}")


async def _read(server: Server, execution_id: int, from_version: int, limit: int) -> EventPage:
    events: list[StoredEvent] = []
    async with connected(server) as clients:
        while True:
            page = await clients.events.read(
                None,
                execution_id,
                from_version=from_version + len(events),
                limit=min(limit - len(events), _PAGE_SIZE),
            )
            events += page.events
            at_head = not page.events or page.events[-1].stream_version >= page.head_version
            if at_head or len(events) >= limit:
                return EventPage(events=tuple(events), head_version=page.head_version, terminal=page.terminal)


async def _follow(
    server: Server, execution_id: int, from_version: int, timeout_seconds: float | None, output: Output
) -> ExitCode:
    async with connected(server) as clients:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await _show_until_end(clients, execution_id, from_version, output)
        except TimeoutError as exc:
            raise DeadlinePassed(f"execution {execution_id} has not ended within {timeout_seconds:g} s") from exc


async def _show_until_end(clients: Clients, execution_id: int, from_version: int, output: Output) -> ExitCode:
    state = empty(execution_id)
    async for batch in watch_through_outages(clients.events, execution_id, from_version=from_version):
        for event in batch:
            if output is Output.JSON:
                echo_json_line(event_document(event))
            else:
                click.echo(event_line(event))
            if is_terminal(event.envelope().event_type):  # all that the exit code needs, from wherever we began
                state = fold(state, record(event))
    if not state.execution.status.is_final:  # it had ended before the version that we began with
        return exit_code_of_status((await clients.executions.get(None, execution_id)).status)
    return exit_code_of_status(state.execution.status)
