"""`noetl run`: register a playbook, start it, and stay until it has ended."""

import asyncio
import sys
from dataclasses import dataclass
from functools import partial

import click
from noetl_contracts.clients import StartedExecution
from noetl_contracts.room import when_there_is_room
from noetl_core.fold import State
from noetl_core.ports.catalog import Registered

from noetl_cli.commands.arguments import naming_the_file
from noetl_cli.commands.result import show_outcome
from noetl_cli.connection import Clients, FindServer, Server, connected, takes_server
from noetl_cli.exits import ExitCode, exit_code_of_status
from noetl_cli.follow.display import choose_display
from noetl_cli.follow.following import SilentDisplay, follow_to_end
from noetl_cli.output import Output, echo_json, echo_json_line, output_option
from noetl_cli.reporting import problem_lines
from noetl_cli.shown.catalog import registered_line
from noetl_cli.shown.durations import span_text
from noetl_cli.shown.events import event_document
from noetl_cli.shown.executions import detailed_document, failure_text, status_text, view_of
from noetl_cli.sources import SOURCE_FILE, STDIN, read_playbook, read_source, shown_name
from noetl_cli.variables import merge_settings, read_payload

PATIENCE_SECONDS = 60.0
"""With a server that has no room, if no --timeout says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What is to be started, and how it is to be watched."""

    file: str | None
    content: str
    path: str
    version: int
    payload: dict[str, object]
    start_key: str
    follow: bool | None
    timeout_seconds: float | None
    output: Output


@click.command()
@click.argument("file", required=False, type=SOURCE_FILE)
@click.option("--path", default="", metavar="PATH", help="Start this playbook of the catalog instead of a file.")
@click.option(
    "--version", default=0, type=click.IntRange(min=0), help="With --path: its version [default: the newest]."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable; the value is JSON if it is that, else text; dots nest. May be given several times.",
)
@click.option("--payload", type=SOURCE_FILE, help="Variables from a JSON file, or - for stdin; --set goes over them.")
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Show progress until the end, or return when it has started. By default progress is shown in text, "
    "and json waits for the end.",
)
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(min=0.0), help="Seconds to wait for the end.")
@click.option("--start-key", default="", metavar="KEY", help="The same key again finds the first execution.")
@output_option
@takes_server
def run(
    *,
    file: str | None,
    path: str,
    version: int,
    settings: tuple[str, ...],
    payload: str | None,
    follow: bool | None,
    timeout_seconds: float | None,
    start_key: str,
    output: Output,
    find_server: FindServer,
) -> None:
    """Register the playbook in FILE, start it, and show it until it has ended.

    Exits with 0 if it COMPLETED, 1 if it FAILED, 4 if it was CANCELLED, 2 if the playbook is broken, 5 if --timeout
    passed. Ctrl-C stops watching and leaves the execution alone; `noetl cancel` ends it.

    \b
    Examples:
      noetl run examples/playbooks/hello_world.yaml
      noetl run hello.yaml --set who=Ada --set retry.limit=3
      noetl run hello.yaml --payload variables.json --timeout 60 -o json
      noetl run --path examples/hello_world --version 2 --no-follow
      noetl run hello.yaml --follow -o json | jq -c .event_type
    """
    if (file is None) == (not path):
        raise click.UsageError("name a FILE, or a playbook of the catalog with --path")
    if version and not path:
        raise click.UsageError("--version goes with --path; a file is always its own version")
    if file == STDIN and payload == STDIN:
        raise click.UsageError("only one of FILE and --payload can come from stdin")
    variables = read_payload(read_source(payload), source=shown_name(payload)) if payload is not None else {}
    with naming_the_file(file or path):
        request = RunRequest(
            file=file,
            content=read_playbook(file) if file is not None else "",
            path=path,
            version=version,
            payload=merge_settings(variables, settings),
            start_key=start_key,
            follow=follow,
            timeout_seconds=timeout_seconds,
            output=output,
        )
        sys.exit(run_request(request, find_server()))


def run_request(request: RunRequest, server: Server) -> int:
    """Start it, and stay with it as long as it says; returns the exit code."""
    started: list[StartedExecution] = []
    try:
        return asyncio.run(_start_and_follow(request, server, started))
    except KeyboardInterrupt:
        if started and request.output is Output.TEXT:
            click.echo(f"detached; it goes on, end it with: noetl cancel {started[0].execution_id}", err=True)
        raise


async def _start_and_follow(request: RunRequest, server: Server, begun: list[StartedExecution]) -> int:
    async with connected(server) as clients:
        started = await _start(request, clients)
        begun.append(started)
        if request.follow is False:
            _show_started(request, started)
            return ExitCode.OK
        state = await _follow(request, clients, started)
    if request.output is Output.JSON:
        echo = echo_json_line if request.follow else echo_json
        echo({**detailed_document(view_of(state)), "created": started.created})
    else:
        await _show_end(state, server)
    return exit_code_of_status(state.execution.status)


async def _start(request: RunRequest, clients: Clients) -> StartedExecution:
    path, version = request.path, request.version
    if request.file is not None:
        registered = await clients.catalog.register(None, request.content)
        path, version = registered.entry.path, registered.entry.version
        if request.output is Output.TEXT:
            _show_registered(registered, file=request.file)
    started = await when_there_is_room(
        lambda: clients.executions.execute(
            None, path=path, version=version, payload=request.payload, start_key=request.start_key
        ),
        patience_seconds=PATIENCE_SECONDS if request.timeout_seconds is None else request.timeout_seconds,
        on_wait=lambda refusal, seconds: click.echo(f"waiting for {seconds:.1f} s: {refusal.message}", err=True),
    )
    if request.output is Output.TEXT:
        how = "started" if started.created else "was started before with this key"
        click.echo(f"execution {started.execution_id} {how}: {started.path} version {started.version}")
    return started


async def _follow(request: RunRequest, clients: Clients, started: StartedExecution) -> State:
    if request.output is Output.TEXT:
        display = partial(choose_display, stream=sys.stdout)
        return await follow_to_end(
            clients, started.execution_id, display=display, timeout_seconds=request.timeout_seconds
        )
    on_event = (lambda event: echo_json_line(event_document(event))) if request.follow else (lambda _: None)
    silent = partial(SilentDisplay, on_event=on_event)
    return await follow_to_end(clients, started.execution_id, display=silent, timeout_seconds=request.timeout_seconds)


def _show_registered(registered: Registered, *, file: str) -> None:
    click.echo(registered_line(registered))
    for line in problem_lines(registered.warnings, file=shown_name(file), severity="warning"):
        click.echo(line, err=True)


def _show_started(request: RunRequest, started: StartedExecution) -> None:
    if request.output is Output.JSON:
        document = {
            "execution_id": str(started.execution_id),
            "path": started.path,
            "version": started.version,
            "created": started.created,
        }
        echo_json(document)
    else:
        click.echo(f"follow it with: noetl events {started.execution_id} --follow")


async def _show_end(state: State, server: Server) -> None:
    execution = state.execution
    took = ""
    if execution.started_at is not None and execution.ended_at is not None:
        took = f" in {span_text((execution.ended_at - execution.started_at).total_seconds())}"
    click.echo(f"{status_text(execution.status)}{took}")
    if execution.error is not None:
        click.echo(f"  {failure_text(execution.error)}")
    await show_outcome(state, server)
    click.echo(f"look at it with: noetl status {execution.execution_id}")
    click.echo(f"                 noetl events {execution.execution_id}")
