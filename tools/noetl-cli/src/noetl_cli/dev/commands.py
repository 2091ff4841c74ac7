"""The commands of `noetl dev`, as people type them."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import click

from noetl_cli.dev.down import down as take_down
from noetl_cli.dev.down import exit_code_of
from noetl_cli.dev.down import status as read_status
from noetl_cli.dev.home import HOME_VARIABLE, StackHome
from noetl_cli.dev.logs import LogLine, StackLog
from noetl_cli.dev.progress import status_lines
from noetl_cli.dev.up import up as bring_up

STACK = "noetl_cli.dev.stack:components"


@click.group()
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Data directory of the stack [default: ${HOME_VARIABLE}, else the nearest .noetl].",
)
@click.pass_context
def dev(context: click.Context, home: Path | None) -> None:
    """Run the whole of NoETL on this machine."""
    located = StackHome.locate(os.environ, working_directory=Path.cwd())
    context.obj = StackHome(root=home.resolve()) if home is not None else located


@dev.command()
@click.option("--foreground", is_flag=True, help="Stay, and stop the stack on Ctrl-C.")
@click.option("--stack", default=STACK, hidden=True)
@click.pass_obj
def up(home: StackHome, foreground: bool, stack: str) -> None:
    """Start the stack; returns when it is ready."""
    sys.exit(bring_up(home, stack=stack, out=click.echo, foreground=foreground))


@dev.command()
@click.pass_obj
def down(home: StackHome) -> None:
    """Stop the stack; its data stays."""
    exit_code = take_down(home, out=click.echo)
    import_module("noetl_cli.dev.shared_memory").remove_copies(home)
    sys.exit(exit_code)


@dev.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def status(home: StackHome, output: str) -> None:
    """Show what runs; exits with 0 when all is ready, 1 when not, 3 when nothing runs."""
    state = read_status(home)
    if output == "json":
        click.echo(json.dumps(state.to_json() if state is not None else {"phase": "stopped"}, indent=2))
    else:
        for line in status_lines(state):
            click.echo(line)
    sys.exit(exit_code_of(state))


@dev.command()
@click.argument("component", required=False)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(min=0))
@click.pass_obj
def logs(home: StackHome, component: str | None, following: bool, lines: int) -> None:
    """Show the newest log lines of a component, or of all in the order of time."""
    log = StackLog(home, component=component)
    for line in log.recent(lines):
        _show(line)
    if following:
        try:
            for line in log.follow(until=lambda: False):
                _show(line)
        except KeyboardInterrupt:
            return


def _show(line: LogLine) -> None:
    click.echo(f"{line.component:<18} | {line.text}")
